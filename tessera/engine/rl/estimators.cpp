// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/estimators.h"

#include <cmath>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/losses/advantages.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/ppo.h"

namespace tessera::engine::rl {
namespace {

using tasks::RlOptions;

at::Tensor zero_of(const at::Tensor& like) {
  return at::zeros({}, like.options());
}
at::Tensor within(const at::Tensor& mask_BT, const at::Tensor& values_BT) {
  return at::where(mask_BT, values_BT, zero_of(values_BT));
}
/// Copies one number of each completion to all of its tokens.
at::Tensor at_tokens(const at::Tensor& values_B, const at::Tensor& mask_BT) {
  return within(mask_BT, values_B.unsqueeze(1).expand(mask_BT.sizes()));
}

/// Returns whether the divergence is a part of the rewards.
bool charged(const Scored& scored, const RlOptions& options) {
  return options.kl.place == tasks::KlPlace::Reward && scored.reference_BT.defined();
}

/// Returns the rewards of tokens: the divergence is charged at its token, and the last token gets
/// the completion's reward.
at::Tensor token_rewards(const Scored& scored, const RlOptions& options) {
  const at::Tensor place_T = at::arange(scored.mask_BT.size(1));
  const at::Tensor last_B1 =
      at::where(scored.mask_BT, place_T, at::full({}, -1, place_T.options())).amax(1, true);
  at::Tensor out_BT = at::where(place_T.unsqueeze(0).eq(last_B1).logical_and(scored.mask_BT),
                                total_rewards(scored, options).unsqueeze(1),
                                zero_of(scored.old_BT));
  if (charged(scored, options))
    out_BT = out_BT - options.kl.coefficient * divergence(scored, options);
  return out_BT;
}

at::Tensor perhaps_whitened(at::Tensor advantages_BT,
                            const Scored& scored,
                            const RlOptions& options) {
  return options.advantage.whiten ? losses::whitened(advantages_BT, scored.mask_BT)
                                  : std::move(advantages_BT);
}

/// Returns the rewards of the functions, or their clipped sum; the divergence counts as one more
/// reward of weight 1.
std::pair<at::Tensor, at::Tensor> all_rewards(const Scored& scored, const RlOptions& options) {
  at::Tensor rewards_BF = scored.rewards_BF, weights_F = scored.weights_F;
  if (options.advantage.clip_reward) {
    rewards_BF = total_rewards(scored, options).unsqueeze(1);
    weights_F = at::ones({1}, weights_F.options());
  }
  if (charged(scored, options)) {
    const at::Tensor cost_B1 =
        -options.kl.coefficient * divergence(scored, options).sum(1, /*keepdim=*/true);
    rewards_BF = at::cat({rewards_BF, cost_B1}, 1);
    weights_F = at::cat({weights_F, at::ones({1}, weights_F.options())});
  }
  return {rewards_BF, weights_F};
}

Advantages group(const Scored& scored, const RlOptions& options) {
  const auto [rewards_BF, weights_F] = all_rewards(scored, options);
  const at::Tensor advantages_B =
      losses::group_advantages(rewards_BF,
                               weights_F,
                               {.group_size = options.samples,
                                .scale = losses::reward_scale(options.advantage.scale),
                                .sum = losses::reward_sum(options.advantage.sum),
                                .epsilon = options.advantage.epsilon});
  return {perhaps_whitened(at_tokens(advantages_B, scored.mask_BT), scored, options), {}};
}

Advantages leave_one_out(const Scored& scored, const RlOptions& options) {
  std::optional<std::pair<double, double>> clip;
  if (const auto limit = options.advantage.clip_reward) clip = {-*limit, *limit};
  const bool with_kl = charged(scored, options);
  const at::Tensor advantages_B =
      losses::leave_one_out_advantages(scored.rewards_BF,
                                       scored.weights_F,
                                       with_kl ? divergence(scored, options).sum(1) : at::Tensor(),
                                       {.group_size = options.samples,
                                        .clip = clip,
                                        .kl_coefficient = with_kl ? options.kl.coefficient : 0.0,
                                        .epsilon = options.advantage.epsilon});
  return {perhaps_whitened(at_tokens(advantages_B, scored.mask_BT), scored, options), {}};
}

Advantages to_go(const Scored& scored, const RlOptions& options) {
  return {
      perhaps_whitened(losses::rewards_to_go(
                           token_rewards(scored, options), scored.mask_BT, options.advantage.gamma),
                       scored,
                       options),
      {}};
}

Advantages gae(const Scored& scored, const RlOptions& options) {
  const losses::Gae made = losses::generalized_advantages(
      {.rewards_BT = token_rewards(scored, options),
       .values_BT = within(scored.mask_BT, scored.values_BT),
       .mask_BT = scored.mask_BT},
      {.gamma = options.advantage.gamma, .lambda = options.advantage.lambda});
  return {perhaps_whitened(within(scored.mask_BT, made.advantages_BT), scored, options),
          made.returns_BT};
}

/// Column t predicts the token after token t, so the last column, which has no next token, is left
/// out.
Advantages dschat_gae(const Scored& scored, const RlOptions& options) {
  const losses::PpoOptions ppo{.kl_coefficient = options.kl.coefficient,
                               .clip_reward = options.advantage.clip_reward.value_or(HUGE_VAL),
                               .gamma = options.advantage.gamma,
                               .lambda = options.advantage.lambda};
  const RlOptions unclipped = [&] {
    RlOptions out = options;
    out.advantage.clip_reward.reset();
    return out;
  }();
  const at::Tensor scores_B = total_rewards(scored, unclipped);
  const at::Tensor reference_BT =
      scored.reference_BT.defined() ? scored.reference_BT : scored.old_BT;
  const std::int64_t B = scored.mask_BT.size(0), columns = scored.mask_BT.size(1) - 1;
  Advantages out{at::zeros_like(scored.old_BT), at::zeros_like(scored.old_BT)};
  for (std::int64_t b = 0; b < B; ++b) {
    const at::Tensor mask_T = scored.mask_BT[b];
    const auto start = mask_T.to(at::kInt).argmax().item<std::int64_t>();
    const std::int64_t end = start + mask_T.sum().item<std::int64_t>();
    const auto row = [&](const at::Tensor& of_BT) {
      return of_BT.narrow(0, b, 1).narrow(1, 0, columns);
    };
    const at::Tensor there_1T = at::arange(columns).lt(end).unsqueeze(0);
    const losses::PpoExperience made =
        losses::ppo_experience(row(scored.old_BT),
                               row(reference_BT),
                               row(scored.values_BT),
                               scores_B.narrow(0, b, 1),
                               there_1T.to(scored.old_BT.scalar_type()),
                               start,
                               ppo);
    out.advantages_BT[b].narrow(0, start, columns - start).copy_(made.advantages_BA[0]);
    out.returns_BT[b].narrow(0, start, columns - start).copy_(made.returns_BA[0]);
  }
  return {perhaps_whitened(within(scored.mask_BT, out.advantages_BT), scored, options),
          within(scored.mask_BT, out.returns_BT)};
}

}  // namespace

at::Tensor total_rewards(const Scored& scored, const RlOptions& options) {
  const at::Tensor sum_B = (scored.rewards_BF.nan_to_num() * scored.weights_F).sum(1);
  const auto limit = options.advantage.clip_reward;
  return limit ? sum_B.clamp(-*limit, *limit) : sum_B;
}

at::Tensor divergence(const Scored& scored, const RlOptions& options) {
  return within(
      scored.mask_BT,
      losses::kl_estimators().get(options.kl.estimator)(scored.old_BT, scored.reference_BT));
}

const Registry<AdvantageEstimator>& advantage_estimators() {
  static const Registry<AdvantageEstimator> registry = [] {
    Registry<AdvantageEstimator> out("estimator of advantages");
    out.add("group", group);
    out.add("leave_one_out", leave_one_out);
    out.add("to_go", to_go);
    out.add("gae", gae);
    out.add("dschat_gae", dschat_gae);
    return out;
  }();
  return registry;
}

}  // namespace tessera::engine::rl
