// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/advantages.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"

namespace tessera::losses {
namespace {

constexpr double kWhiteningEpsilon = 1e-8;

at::Tensor zero_like(const at::Tensor& x) {
  return at::zeros({}, x.options());
}

/// Moments along a dimension, which is kept, of the elements that are not NaN.
struct Moments {
  at::Tensor mean, deviation;  ///< deviation: unbiased; 0 for fewer than two elements
};
Moments moments(const at::Tensor& values, std::int64_t dim) {
  const at::Tensor there = values.isnan().logical_not();
  const at::Tensor count = there.sum(dim, true).to(values.scalar_type());
  const auto sum_of = [&](const at::Tensor& x) {
    return at::where(there, x, zero_like(values)).sum(dim, true);
  };
  Moments out;
  out.mean = sum_of(values) / count;
  const at::Tensor variance = sum_of((values - out.mean).square()) / (count - 1).clamp_min(1);
  out.deviation = variance.sqrt();
  return out;
}

void check_rewards(const at::Tensor& rewards_BF,
                   const at::Tensor& weights_F,
                   std::int64_t group_size) {
  TESSERA_REQUIRE(rewards_BF.dim() == 2 && weights_F.dim() == 1 &&
                      rewards_BF.size(1) == weights_F.size(0) && group_size > 0 &&
                      rewards_BF.size(0) % group_size == 0,
                  Shape,
                  fmt::format("{} completions are not a multiple of the group size {}, or a reward "
                              "function has no weight",
                              rewards_BF.size(0),
                              group_size),
                  "give rewards [completions, functions] and weights [functions]");
}

/// The weighted sum of the existing rewards; NaN if there is none. [B, F] -> [B].
at::Tensor weighted_sum(const at::Tensor& rewards_BF, const at::Tensor& weights_F) {
  const at::Tensor absent_BF = rewards_BF.isnan();
  const at::Tensor sum_B =
      at::where(absent_BF, zero_like(rewards_BF), rewards_BF * weights_F).sum(1);
  const at::Tensor nothing =
      at::full({}, std::numeric_limits<double>::quiet_NaN(), rewards_BF.options());
  return at::where(absent_BF.all(1), nothing, sum_B);
}

at::Tensor normalized_then_summed(const at::Tensor& rewards_BF,
                                  const at::Tensor& weights_F,
                                  const GroupOptions& options) {
  const at::Tensor groups_GNF = rewards_BF.view({-1, options.group_size, rewards_BF.size(1)});
  const Moments of_group = moments(groups_GNF, 1);
  const at::Tensor scaled_BF =
      ((groups_GNF - of_group.mean) / (of_group.deviation + options.epsilon))
          .view(rewards_BF.sizes());
  const at::Tensor sum_B = weighted_sum(scaled_BF, weights_F);
  const Moments of_batch = moments(sum_B, 0);
  return (sum_B - of_batch.mean) / (of_batch.deviation + options.epsilon);
}

}  // namespace

Gae generalized_advantages(const GaeInput& in, const GaeOptions& options) {
  const at::Tensor values_BT = in.values_BT.detach();
  const std::int64_t B = values_BT.size(0), T = values_BT.size(1);
  TESSERA_REQUIRE(in.rewards_BT.sizes() == values_BT.sizes(),
                  Shape,
                  "rewards and values of other sizes",
                  "give a reward and a value for each token");
  const at::Tensor zero_B = at::zeros({B}, values_BT.options());
  const at::Tensor bootstrap_B = in.bootstrap_B.defined() ? in.bootstrap_B : zero_B;
  at::Tensor next_value_B = bootstrap_B, carried_B = zero_B;
  const at::Tensor advantages_BT = at::zeros_like(values_BT);
  for (std::int64_t t = T - 1; t >= 0; --t) {
    const at::Tensor value_B = values_BT.select(1, t);
    at::Tensor going_on_B = at::ones_like(zero_B);
    if (in.done_BT.defined())
      going_on_B = in.done_BT.select(1, t).eq(0).to(values_BT.scalar_type());
    const at::Tensor error_B =
        in.rewards_BT.select(1, t) + options.gamma * next_value_B * going_on_B - value_B;
    at::Tensor advantage_B = error_B + options.gamma * options.lambda * going_on_B * carried_B;
    at::Tensor before_B = value_B;
    if (in.mask_BT.defined()) {
      // After the completion the recursion carries nothing; the value after its last token is the
      // bootstrap.
      const at::Tensor inside_B = in.mask_BT.select(1, t).ne(0);
      advantage_B = at::where(inside_B, advantage_B, zero_B);
      before_B = at::where(inside_B, value_B, bootstrap_B);
    }
    advantages_BT.select(1, t).copy_(advantage_B);
    carried_B = advantage_B;
    next_value_B = before_B;
  }
  at::Tensor returns_BT = advantages_BT + values_BT;
  if (in.mask_BT.defined())
    returns_BT = at::where(in.mask_BT.ne(0), returns_BT, zero_like(returns_BT));
  return {advantages_BT, returns_BT};
}

at::Tensor whitened(const at::Tensor& values_BT, const at::Tensor& mask_BT, bool keep_mean) {
  const at::Tensor there = mask_BT.ne(0), count = there.sum().to(values_BT.scalar_type());
  const auto sum_of = [&](const at::Tensor& x) {
    return at::where(there, x, zero_like(values_BT)).sum();
  };
  const at::Tensor mean = sum_of(values_BT) / count.clamp_min(1);
  const at::Tensor variance = sum_of((values_BT - mean).square()) / (count - 1).clamp_min(1);
  at::Tensor out = (values_BT - mean) * (variance + kWhiteningEpsilon).rsqrt();
  if (keep_mean) out = out + mean;
  return at::where(there, out, zero_like(out));
}

at::Tensor rewards_to_go(const at::Tensor& rewards_BT, const at::Tensor& mask_BT, double gamma) {
  const at::Tensor there_BT = mask_BT.ne(0), out_BT = at::zeros_like(rewards_BT);
  at::Tensor carried_B = at::zeros({rewards_BT.size(0)}, rewards_BT.options());
  for (std::int64_t t = rewards_BT.size(1) - 1; t >= 0; --t) {
    const at::Tensor inside_B = there_BT.select(1, t);
    carried_B = at::where(inside_B, rewards_BT.select(1, t) + gamma * carried_B, carried_B);
    out_BT.select(1, t).copy_(at::where(inside_B, carried_B, zero_like(carried_B)));
  }
  return out_BT;
}

RewardScale reward_scale(const std::string& name) {
  static const Registry<RewardScale> registry = [] {
    Registry<RewardScale> out("scale of rewards");
    out.add("none", RewardScale::None);
    out.add("group", RewardScale::Group);
    out.add("batch", RewardScale::Batch);
    return out;
  }();
  return registry.get(name);
}

RewardSum reward_sum(const std::string& name) {
  static const Registry<RewardSum> registry = [] {
    Registry<RewardSum> out("sum of rewards");
    out.add("sum_then_normalize", RewardSum::SumThenNormalize);
    out.add("normalize_then_sum", RewardSum::NormalizeThenSum);
    return out;
  }();
  return registry.get(name);
}

at::Tensor group_advantages(const at::Tensor& rewards_BF,
                            const at::Tensor& weights_F,
                            const GroupOptions& options) {
  check_rewards(rewards_BF, weights_F, options.group_size);
  if (options.sum == RewardSum::NormalizeThenSum)
    return normalized_then_summed(rewards_BF, weights_F, options).nan_to_num(0.0);
  const at::Tensor rewards_B = weighted_sum(rewards_BF, weights_F);
  const at::Tensor groups_GN = rewards_B.view({-1, options.group_size});
  const Moments of_group = moments(groups_GN, 1);
  at::Tensor advantages_GN = groups_GN - of_group.mean;
  if (options.scale == RewardScale::Group)
    advantages_GN = advantages_GN / (of_group.deviation + options.epsilon);
  if (options.scale == RewardScale::Batch)
    advantages_GN = advantages_GN / (moments(rewards_B, 0).deviation + options.epsilon);
  return advantages_GN.flatten().nan_to_num(0.0);
}

at::Tensor leave_one_out_advantages(const at::Tensor& rewards_BF,
                                    const at::Tensor& weights_F,
                                    const at::Tensor& kl_B,
                                    const LeaveOneOutOptions& options) {
  check_rewards(rewards_BF, weights_F, options.group_size);
  at::Tensor rewards_B = weighted_sum(rewards_BF, weights_F);
  if (options.clip) rewards_B = rewards_B.clamp(options.clip->first, options.clip->second);
  if (kl_B.defined()) rewards_B = rewards_B - options.kl_coefficient * kl_B.detach();
  const at::Tensor groups_GN = rewards_B.view({-1, options.group_size});
  const at::Tensor there_GN = groups_GN.isnan().logical_not();
  const at::Tensor known_GN = at::where(there_GN, groups_GN, zero_like(groups_GN));
  const at::Tensor others_GN =
      (there_GN.sum(1, true) - there_GN.to(at::kLong)).to(groups_GN.scalar_type());
  // A completion without others has no baseline (0 / 0), and does not count in the batch's moments.
  const at::Tensor baseline_GN = (known_GN.sum(1, true) - known_GN) / others_GN;
  at::Tensor advantages_B = (groups_GN - baseline_GN).flatten();
  if (options.normalize) {
    const Moments of_batch = moments(advantages_B, 0);
    advantages_B = (advantages_B - of_batch.mean) / (of_batch.deviation + options.epsilon);
  }
  return advantages_B.nan_to_num(0.0);
}

double adapted_kl_coefficient(
    double coefficient, double divergence, double target, double samples, double horizon) {
  const double error = std::clamp(divergence / target - 1, -0.2, 0.2);
  return coefficient * (1 + error * samples / horizon);
}

}  // namespace tessera::losses
