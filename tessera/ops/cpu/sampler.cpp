// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

struct Candidate {
  std::int64_t id;
  double weight;
};

/// The more likely candidate first; among equal ones the lower id.
bool before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

void keep_top_k(std::vector<Candidate>& all, std::int64_t k) {
  if (k <= 0 || k >= static_cast<std::int64_t>(all.size())) return;
  std::partial_sort(all.begin(), all.begin() + k, all.end(), before);
  all.resize(static_cast<std::size_t>(k));
}

double total(const std::vector<Candidate>& all) {
  return std::accumulate(
      all.begin(), all.end(), 0.0, [](double sum, const Candidate& c) { return sum + c.weight; });
}

/// Keeps the smallest number of most likely candidates that together reach the share p; at least
/// one.
void keep_nucleus(std::vector<Candidate>& all, double p) {
  if (p >= 1.0) return;
  std::sort(all.begin(), all.end(), before);
  const double wanted = p * total(all);
  double reached = 0.0;
  std::size_t count = 0;
  while (count < all.size() && (count == 0 || reached < wanted))
    reached += all[count++].weight;
  all.resize(count);
}

std::int64_t draw(const std::vector<Candidate>& all, std::uint64_t seed, std::int64_t position) {
  const Philox::Block words = Philox{seed}(static_cast<std::uint64_t>(position));
  const double goal = uniform_double(words[0], words[1]) * total(all);
  double passed = 0.0;
  for (const Candidate& candidate : all) {
    passed += candidate.weight;
    if (goal < passed) return candidate.id;
  }
  return all.back().id;
}

}  // namespace

std::int64_t CpuBackend::sample_token(const at::Tensor& logits_V,
                                      std::int64_t vocab,
                                      const SamplerOptions& options,
                                      std::uint64_t seed,
                                      std::int64_t position) const {
  const at::Tensor logits = plain_float(logits_V);
  const float* logit = logits.data_ptr<float>();
  const std::int64_t best = std::max_element(logit, logit + vocab) - logit;
  for (std::int64_t id = 0; id < vocab; ++id) {
    TESSERA_REQUIRE(
        !std::isnan(logit[id]), Numeric, "logit " + std::to_string(id) + " is not a number", "");
  }
  if (options.temperature == 0.0) return best;
  std::vector<Candidate> all(static_cast<std::size_t>(vocab));
  for (std::int64_t id = 0; id < vocab; ++id) {
    const double above = static_cast<double>(logit[id]) - static_cast<double>(logit[best]);
    all[static_cast<std::size_t>(id)] = {id,
                                         id == best ? 1.0 : std::exp(above / options.temperature)};
  }
  keep_top_k(all, options.top_k);
  keep_nucleus(all, options.top_p);
  return draw(all, seed, position);
}

}  // namespace tessera::ops::cpu
