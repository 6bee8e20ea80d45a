// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr float kClosed = -std::numeric_limits<float>::infinity();
/// Tokens that a thread takes at a time.
constexpr std::int64_t kGrain = 64;

/// The values of one token in the order of the experts.
using Row = std::span<const float>;

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

/// Writes the softmax of the open entries of `x`, those that are above kClosed.
void softmax(Row x, std::span<float> out) {
  const float most = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (std::size_t e = 0; e < x.size(); ++e) {
    out[e] = x[e] == kClosed ? 0.0F : std::exp(x[e] - most);
    sum += static_cast<double>(out[e]);
  }
  for (float& value : out)
    value = static_cast<float>(static_cast<double>(value) / sum);
}

/// The index of the largest value; the first of equal ones.
std::size_t best_of(Row x) {
  return static_cast<std::size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

/// Closes the experts of all groups but the best ones.
void close_groups(std::span<float> keys, const RouterSpec& spec) {
  if (spec.groups == 1 || spec.top_groups == spec.groups) return;
  const std::size_t size = keys.size() / static_cast<std::size_t>(spec.groups);
  std::vector<float> rank;
  for (std::size_t begin = 0; begin < keys.size(); begin += size) {
    std::vector<float> group(keys.begin() + static_cast<std::ptrdiff_t>(begin),
                             keys.begin() + static_cast<std::ptrdiff_t>(begin + size));
    const std::ptrdiff_t count = spec.group_rank == GroupRank::BestTwo ? 2 : 1;
    std::partial_sort(group.begin(), group.begin() + count, group.end(), std::greater<>());
    rank.push_back(std::accumulate(group.begin(), group.begin() + count, 0.0F));
  }
  std::vector<bool> open(rank.size(), false);
  for (std::int64_t i = 0; i < spec.top_groups; ++i) {
    const std::size_t best = best_of(rank);
    open[best] = true;
    rank[best] = kClosed;
  }
  for (std::size_t e = 0; e < keys.size(); ++e) {
    if (!open[e / size]) keys[e] = kClosed;
  }
}

/// PhiMoE's masks: entries further below the largest open one than 2 eps of it are closed.
void close_far(std::span<float> open, Row logits, double eps) {
  const float most = *std::max_element(open.begin(), open.end());
  for (std::size_t e = 0; e < open.size(); ++e) {
    const float scale = std::max(std::abs(logits[e]), most);
    if ((most - logits[e]) / scale > static_cast<float>(2.0 * eps)) open[e] = kClosed;
  }
}

/// The logits over which slot `k` of a sparse mixer computes its softmax.
std::vector<float> mixer_logits(Row logits, int k, std::size_t first, double eps) {
  std::vector<float> open(logits.begin(), logits.end());
  if (k > 0) open[first] = kClosed;
  close_far(open, logits, eps);
  return open;
}

/// The destinations of one token's choices.
struct Chosen {
  std::int32_t* experts;
  float* raw;
  std::span<float> scores;
};

void choose_mixed(Row logits, const RouterSpec& spec, const Chosen& out) {
  std::vector<float> share(logits.size());
  std::size_t first = 0;
  for (int k = 0; k < 2; ++k) {
    const std::vector<float> open = mixer_logits(logits, k, first, spec.mixer_eps);
    const std::size_t best = best_of(open);
    softmax(open, share);
    out.experts[k] = static_cast<std::int32_t>(best);
    out.raw[k] = share[best];
    first = best;
  }
}

/// Values that are the same for all tokens, by expert; null: none.
struct ByExpert {
  const float* correction = nullptr;  ///< added to scores for the choice
  const double* shift = nullptr;      ///< added to logits for the choice
};

/// The values by which a token's experts are chosen.
std::vector<float> keys_of(Row logits, Row raw, const RouterSpec& spec, const ByExpert& added) {
  // Without sums or corrections of scores, logits have the order of the scores and are not rounded.
  const bool by_score =
      added.correction != nullptr || (spec.groups > 1 && spec.group_rank == GroupRank::BestTwo);
  const Row from = by_score ? raw : logits;
  std::vector<float> keys(from.begin(), from.end());
  for (std::size_t e = 0; e < keys.size(); ++e) {
    if (added.correction != nullptr) keys[e] += added.correction[e];
    if (added.shift != nullptr)
      keys[e] = static_cast<float>(static_cast<double>(keys[e]) + added.shift[e]);
  }
  close_groups(keys, spec);
  return keys;
}

void choose_one(Row logits, const ByExpert& added, const RouterSpec& spec, const Chosen& out) {
  const bool sigmoids = spec.score == RouterScore::Sigmoid;
  std::vector<float> raw(logits.size());
  if (sigmoids) {
    std::transform(logits.begin(), logits.end(), raw.begin(), sigmoid);
    double sum = 0.0;
    for (const float value : raw)
      sum += static_cast<double>(value);
    for (std::size_t e = 0; e < raw.size(); ++e)
      out.scores[e] = static_cast<float>(static_cast<double>(raw[e]) / sum);
  } else {
    softmax(logits, raw);
    std::copy(raw.begin(), raw.end(), out.scores.begin());
  }
  if (spec.score == RouterScore::SparseMixer) return choose_mixed(logits, spec, out);
  std::vector<float> keys = keys_of(logits, raw, spec, added);
  for (std::int64_t k = 0; k < spec.top_k; ++k) {
    const std::size_t best = best_of(keys);
    out.experts[k] = static_cast<std::int32_t>(best);
    out.raw[k] = raw[best];
    keys[best] = kClosed;
  }
}

/// The sum by which the weights of a token are divided.
double divisor_of(const float* raw,
                  const std::int32_t* experts,
                  const RouterSpec& spec,
                  const CapacitySpec& capacity) {
  if (!spec.normalize) return 1.0;
  double sum = spec.normalize_eps;
  bool any = false;
  for (std::int64_t k = 0; k < spec.top_k; ++k) {
    if (capacity.normalize_after && experts[k] < 0) continue;
    sum += static_cast<double>(raw[k]);
    any = true;
  }
  return any && sum > 0.0 ? sum : 1.0;
}

void write_weights(Choices& choices, const RouterSpec& spec, const CapacitySpec& capacity) {
  const std::int64_t K = spec.top_k, N = choices.raw_NK.size(0);
  const auto* raw = choices.raw_NK.const_data_ptr<float>();
  const auto* experts = choices.experts_NK.const_data_ptr<std::int32_t>();
  auto* weights = choices.weights_NK.data_ptr<float>();
  for (std::int64_t n = 0; n < N; ++n, raw += K, experts += K, weights += K) {
    const double divisor = divisor_of(raw, experts, spec, capacity);
    for (std::int64_t k = 0; k < K; ++k) {
      weights[k] = experts[k] < 0
                       ? 0.0F
                       : static_cast<float>(static_cast<double>(raw[k]) / divisor * spec.scale);
    }
  }
}

void check(std::int64_t E, const RouterSpec& spec) {
  const bool divides = spec.groups > 0 && E % spec.groups == 0;
  const std::int64_t open = divides ? E / spec.groups * spec.top_groups : 0;
  TESSERA_REQUIRE(spec.top_k >= 1 && spec.top_k <= open,
                  Shape,
                  fmt::format("a token uses {} of {} experts in {} groups, of which {} are open",
                              spec.top_k,
                              E,
                              spec.groups,
                              spec.top_groups),
                  "let a token use no more experts than the open groups have");
}

}  // namespace

Choices choose_experts(const at::Tensor& logits_NE,
                       const at::Tensor& correction_E,
                       const RouterSpec& spec,
                       const SumOverRanks& sum) {
  const std::int64_t N = logits_NE.size(0), E = logits_NE.size(1), K = spec.top_k;
  check(E, spec);
  const OpScope scope("choose experts", [&] {
    return OpWork{.bytes = static_cast<double>(logits_NE.nbytes()), .shape = shape(logits_NE)};
  });
  const bool meta = logits_NE.is_meta();
  const auto floats = at::TensorOptions().dtype(at::kFloat).device(meta ? at::kMeta : at::kCPU);
  Choices out = {.chosen_NK = at::empty({N, K}, floats.dtype(at::kInt)),
                 .experts_NK = {},
                 .raw_NK = at::empty({N, K}, floats),
                 .weights_NK = at::empty({N, K}, floats),
                 .scores_NE = at::empty({N, E}, floats)};
  out.experts_NK = out.chosen_NK;
  if (meta) return out;
  const at::Tensor logits = logits_NE.to(at::kCPU).contiguous();
  const at::Tensor correction =
      correction_E.defined() ? correction_E.to(at::kCPU, at::kFloat).contiguous() : at::Tensor();
  const auto* from = logits.const_data_ptr<float>();
  std::vector<double> shifts;
  if (spec.choice == RouterChoice::Sinkhorn) shifts = sinkhorn_shifts(from, N, E, sum);
  const ByExpert added = {
      .correction = correction.defined() ? correction.const_data_ptr<float>() : nullptr,
      .shift = shifts.empty() ? nullptr : shifts.data()};
  auto* experts = out.chosen_NK.data_ptr<std::int32_t>();
  auto *raw = out.raw_NK.data_ptr<float>(), *scores = out.scores_NE.data_ptr<float>();
  const auto width = static_cast<std::size_t>(E);
  at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      choose_one({from + n * E, width},
                 added,
                 spec,
                 {experts + n * K, raw + n * K, {scores + n * E, width}});
    }
  });
  write_weights(out, spec, {});
  return out;
}

namespace {

/// The gradients of the raw weights of one token.
void raw_gradients(const float* dweights,
                   const float* raw,
                   const std::int32_t* experts,
                   const RouterSpec& spec,
                   const CapacitySpec& capacity,
                   std::span<double> out) {
  const double divisor = divisor_of(raw, experts, spec, capacity);
  double mean = 0.0;
  for (std::size_t k = 0; k < out.size(); ++k) {
    out[k] = experts[k] < 0 ? 0.0 : static_cast<double>(dweights[k]) * spec.scale / divisor;
    mean += out[k] * static_cast<double>(raw[k]) / divisor;
  }
  if (!spec.normalize) return;
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (!capacity.normalize_after || experts[k] >= 0) out[k] -= mean;
  }
}

/// Adds the gradient of a softmax `p` whose gradient is `dp`.
void add_softmax_gradient(std::span<const double> dp, Row p, std::span<double> out) {
  double mean = 0.0;
  for (std::size_t e = 0; e < p.size(); ++e)
    mean += dp[e] * static_cast<double>(p[e]);
  for (std::size_t e = 0; e < p.size(); ++e)
    out[e] += static_cast<double>(p[e]) * (dp[e] - mean);
}

void add_mixed_gradient(Row logits,
                        const std::int32_t* chosen,
                        std::span<const double> draw,
                        double eps,
                        std::span<double> out) {
  std::vector<float> share(logits.size());
  for (int k = 0; k < 2; ++k) {
    softmax(mixer_logits(logits, k, static_cast<std::size_t>(chosen[0]), eps), share);
    std::vector<double> dp(logits.size(), 0.0);
    dp[static_cast<std::size_t>(chosen[k])] = draw[static_cast<std::size_t>(k)];
    add_softmax_gradient(dp, share, out);
  }
}

void add_sigmoid_gradient(Row logits,
                          const std::int32_t* chosen,
                          std::span<const double> draw,
                          const float* dscores,
                          Row scores,
                          std::span<double> out) {
  std::vector<double> ds(logits.size(), 0.0);
  for (std::size_t k = 0; k < draw.size(); ++k)
    ds[static_cast<std::size_t>(chosen[k])] = draw[k];
  if (dscores != nullptr) {
    double sum = 0.0, mean = 0.0;
    for (std::size_t e = 0; e < ds.size(); ++e) {
      sum += static_cast<double>(sigmoid(logits[e]));
      mean += static_cast<double>(dscores[e]) * static_cast<double>(scores[e]);
    }
    for (std::size_t e = 0; e < ds.size(); ++e)
      ds[e] += (static_cast<double>(dscores[e]) - mean) / sum;
  }
  for (std::size_t e = 0; e < ds.size(); ++e) {
    const auto s = static_cast<double>(sigmoid(logits[e]));
    out[e] += ds[e] * s * (1.0 - s);
  }
}

/// Adds the gradients of weights and scores to those of the logits of one token.
void add_logit_gradients(Row logits,
                         const std::int32_t* chosen,
                         std::span<const double> draw,
                         const float* dscores,
                         Row scores,
                         const RouterSpec& spec,
                         std::span<double> out) {
  if (spec.score == RouterScore::Sigmoid)
    return add_sigmoid_gradient(logits, chosen, draw, dscores, scores, out);
  std::vector<double> dp(logits.size(), 0.0);
  if (dscores != nullptr) std::copy_n(dscores, dp.size(), dp.begin());
  if (spec.score == RouterScore::SparseMixer) {
    add_mixed_gradient(logits, chosen, draw, spec.mixer_eps, out);
  } else {
    for (std::size_t k = 0; k < draw.size(); ++k)
      dp[static_cast<std::size_t>(chosen[k])] += draw[k];
  }
  add_softmax_gradient(dp, scores, out);
}

}  // namespace

at::Tensor choose_experts_backward(const at::Tensor& dweights_NK,
                                   const at::Tensor& dscores_NE,
                                   const at::Tensor& logits_NE,
                                   const Choices& choices,
                                   const RouterSpec& spec,
                                   const CapacitySpec& capacity) {
  const std::int64_t N = logits_NE.size(0), E = logits_NE.size(1), K = spec.top_k;
  if (logits_NE.is_meta()) return at::empty_like(logits_NE);
  const at::Tensor logits = logits_NE.to(at::kCPU).contiguous();
  const at::Tensor dweights =
      dweights_NK.defined() ? dweights_NK.to(at::kCPU, at::kFloat).contiguous() : at::Tensor();
  const at::Tensor dscores =
      dscores_NE.defined() ? dscores_NE.to(at::kCPU, at::kFloat).contiguous() : at::Tensor();
  const at::Tensor out = at::empty({N, E}, logits.options());
  const auto width = static_cast<std::size_t>(E), slots = static_cast<std::size_t>(K);
  at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sum(width), draw(slots);
    for (std::int64_t n = begin; n < end; ++n) {
      std::fill(sum.begin(), sum.end(), 0.0);
      std::fill(draw.begin(), draw.end(), 0.0);
      if (dweights.defined()) {
        raw_gradients(dweights.const_data_ptr<float>() + n * K,
                      choices.raw_NK.const_data_ptr<float>() + n * K,
                      choices.experts_NK.const_data_ptr<std::int32_t>() + n * K,
                      spec,
                      capacity,
                      draw);
      }
      add_logit_gradients({logits.const_data_ptr<float>() + n * E, width},
                          choices.chosen_NK.const_data_ptr<std::int32_t>() + n * K,
                          draw,
                          dscores.defined() ? dscores.const_data_ptr<float>() + n * E : nullptr,
                          {choices.scores_NE.const_data_ptr<float>() + n * E, width},
                          spec,
                          sum);
      std::transform(sum.begin(), sum.end(), out.data_ptr<float>() + n * E, [](double value) {
        return static_cast<float>(value);
      });
    }
  });
  return out.to(logits_NE.device());
}

std::int64_t expert_capacity(std::int64_t tokens,
                             std::int64_t num_experts,
                             std::int64_t top_k,
                             const CapacitySpec& spec) {
  if (spec.tokens > 0) return spec.tokens;
  const auto share =
      static_cast<float>(static_cast<double>(tokens) / static_cast<double>(num_experts));
  const auto factor = static_cast<float>(spec.factor * static_cast<double>(top_k));
  return std::max(spec.minimum, static_cast<std::int64_t>(std::ceil(share * factor)));
}

namespace {

/// The choices (n * K + k) of tokens [begin, end) in the order in which experts accept them.
std::vector<std::int64_t> order_of(const Choices& choices,
                                   const CapacitySpec& capacity,
                                   std::int64_t begin,
                                   std::int64_t end) {
  const std::int64_t K = choices.chosen_NK.size(1);
  std::vector<std::int64_t> order(static_cast<std::size_t>((end - begin) * K));
  std::iota(order.begin(), order.end(), begin * K);
  if (capacity.drop == DropRule::Choice) {
    std::stable_sort(
        order.begin(), order.end(), [K](std::int64_t a, std::int64_t b) { return a % K < b % K; });
  } else if (capacity.drop == DropRule::Probability) {
    const auto* key =
        (capacity.normalize_after ? choices.raw_NK : choices.weights_NK).const_data_ptr<float>();
    std::stable_sort(order.begin(), order.end(), [key](std::int64_t a, std::int64_t b) {
      return key[a] > key[b];
    });
  }
  return order;
}

}  // namespace

std::int64_t drop_choices(Choices& choices,
                          const RouterSpec& spec,
                          const CapacitySpec& capacity,
                          std::int64_t num_experts,
                          std::int64_t samples) {
  if (!capacity.limits() || choices.chosen_NK.is_meta()) return 0;
  const std::int64_t N = choices.chosen_NK.size(0), groups = capacity.per_sample ? samples : 1;
  if (N == 0) return 0;
  const std::int64_t tokens = N / groups;
  const std::int64_t most = expert_capacity(tokens, num_experts, spec.top_k, capacity);
  choices.experts_NK = choices.chosen_NK.clone();
  auto* experts = choices.experts_NK.data_ptr<std::int32_t>();
  std::int64_t dropped = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> count(static_cast<std::size_t>(num_experts), 0);
    for (const std::int64_t choice :
         order_of(choices, capacity, group * tokens, (group + 1) * tokens)) {
      if (++count[static_cast<std::size_t>(experts[choice])] <= most) continue;
      experts[choice] = -1;
      ++dropped;
    }
  }
  choices.weights_NK = at::empty_like(choices.weights_NK);  // copies of `choices` keep theirs
  write_weights(choices, spec, capacity);
  return dropped;
}

}  // namespace tessera::ops
