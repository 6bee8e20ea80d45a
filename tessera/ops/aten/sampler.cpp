// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/sampler.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

/// The number of largest weights that together reach the share p; at least one.
std::int64_t nucleus_size(const at::Tensor& weights, double p) {
  const at::Tensor reached = weights.cumsum(0);
  const at::Tensor wanted = reached[-1] * p;
  return std::max<std::int64_t>(1, ((reached - weights) < wanted).sum().item<std::int64_t>());
}

}  // namespace

std::int64_t AtenBackend::sample_token(const at::Tensor& logits_V,
                                       std::int64_t vocab,
                                       const SamplerOptions& options,
                                       std::uint64_t seed,
                                       std::int64_t position) const {
  const at::Tensor logits = logits_V.reshape({-1}).narrow(0, 0, vocab).to(at::kFloat);
  const at::Tensor undefined = logits.isnan().nonzero();
  TESSERA_REQUIRE(
      undefined.size(0) == 0,
      Numeric,
      "logit " + std::to_string(undefined[0][0].item<std::int64_t>()) + " is not a number",
      "");
  const auto best = logits.argmax().item<std::int64_t>();
  if (options.temperature == 0.0) return best;
  const at::Tensor wide = logits.to(at::kDouble);
  at::Tensor weights = ((wide - wide[best]) / options.temperature).exp();
  weights.narrow(0, best, 1).fill_(1.0);  // the difference of infinite logits is undefined
  at::Tensor ids = at::arange(vocab, logits.options().dtype(at::kLong));
  const bool few = options.top_k > 0 && options.top_k < vocab;
  if (few || options.top_p < 1.0) {
    // Among equal weights the lower id comes first.
    ids = std::get<1>(weights.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
    if (few) ids = ids.narrow(0, 0, options.top_k);
    weights = weights.index_select(0, ids);
  }
  if (options.top_p < 1.0) {
    const std::int64_t count = nucleus_size(weights, options.top_p);
    weights = weights.narrow(0, 0, count);
    ids = ids.narrow(0, 0, count);
  }
  const Philox::Block words = Philox{seed}(static_cast<std::uint64_t>(position));
  const at::Tensor passed = weights.cumsum(0);
  const at::Tensor goal = passed[-1] * uniform_double(words[0], words[1]);
  const std::int64_t drawn = (passed <= goal).sum().item<std::int64_t>();
  return ids[std::min(drawn, ids.size(0) - 1)].item<std::int64_t>();
}

}  // namespace tessera::ops::aten
