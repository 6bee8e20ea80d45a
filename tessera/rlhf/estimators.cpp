// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/estimators.h"

#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/advantages.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/ppo.h"

namespace tessera::rlhf {
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

bool charged(const RlOptions& options) {
  return options.kl.place == tasks::KlPlace::Reward && options.kl.coefficient > 0;
}
/// Returns the reward of a completion with its divergence as a formula.
std::string completion_reward_formula(const RlOptions& options) {
  if (!charged(options)) return "R";
  return fmt::format("R - {} x the sum over tokens of KL", text::number(options.kl.coefficient));
}
/// Returns the reward of a token as a formula; `place`: where R is added.
std::string token_reward_formula(const RlOptions& options, const char* place) {
  const std::string cost =
      charged(options) ? fmt::format("-{} KL", text::number(options.kl.coefficient)) : "0";
  return fmt::format("r[t] = {}, and R more at {}", cost, place);
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

std::vector<std::string> group_formula(const RlOptions& options) {
  const tasks::RlAdvantage& how = options.advantage;
  const std::string epsilon = text::number(how.epsilon);
  if (losses::reward_sum(how.sum) == losses::RewardSum::NormalizeThenSum) {
    return {fmt::format("A = (S - mean of S) / (deviation of S + {}) over the rollout", epsilon),
            fmt::format("S = the sum over rewards of weight x (r - mean of r) / (deviation of r + "
                        "{}) over the {} completions of a prompt",
                        epsilon,
                        options.samples)};
  }
  std::string scale;
  switch (losses::reward_scale(how.scale)) {
    case losses::RewardScale::Group:
      scale = fmt::format(" / (deviation of Q of the prompt + {})", epsilon);
      break;
    case losses::RewardScale::Batch:
      scale = fmt::format(" / (deviation of Q of the rollout + {})", epsilon);
      break;
    case losses::RewardScale::None:
      break;
  }
  const std::string difference =
      fmt::format("Q - mean of Q of the {} completions of the prompt", options.samples);
  return {scale.empty() ? "A = " + difference : fmt::format("A = ({}){}", difference, scale),
          "Q = " + completion_reward_formula(options)};
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

std::vector<std::string> leave_one_out_formula(const RlOptions& options) {
  return {fmt::format("A = Q - mean of Q of the other {} completions of the prompt",
                      options.samples - 1),
          "Q = " + completion_reward_formula(options)};
}

Advantages to_go(const Scored& scored, const RlOptions& options) {
  return {
      perhaps_whitened(losses::rewards_to_go(
                           token_rewards(scored, options), scored.mask_BT, options.advantage.gamma),
                       scored,
                       options),
      {}};
}

std::vector<std::string> to_go_formula(const RlOptions& options) {
  return {fmt::format("A[t] = r[t] + {} A[t+1]", text::number(options.advantage.gamma)),
          token_reward_formula(options, "the last token")};
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

std::vector<std::string> formula_of_gae(const RlOptions& options, const char* place) {
  const std::string gamma = text::number(options.advantage.gamma);
  return {fmt::format("A[t] = r[t] + {0} V[t+1] - V[t] + {0} x {1} A[t+1]",
                      gamma,
                      text::number(options.advantage.lambda)),
          token_reward_formula(options, place),
          "V = the critic's value with which the rollout was judged"};
}
std::vector<std::string> gae_formula(const RlOptions& options) {
  return formula_of_gae(options, "the last token");
}
std::vector<std::string> dschat_gae_formula(const RlOptions& options) {
  return formula_of_gae(options, "the position after the answer");
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

std::vector<std::string> advantage_formula(const tasks::Rl& task) {
  const RlOptions& options = task.options();
  std::vector<std::string> rewards;
  for (const tasks::RlReward& reward : task.rewards())
    rewards.push_back(fmt::format("{} {}", text::number(reward.weight), reward.name));
  std::string sum = text::join(rewards, " + ");
  if (const auto limit = options.advantage.clip_reward)
    sum = fmt::format("clip({0}, -{1}, {1})", sum, text::number(*limit));
  std::vector<std::string> out =
      advantage_estimators().get(options.advantage.estimator).formula(options);
  if (options.advantage.whiten) {
    out.emplace_back(
        "A is whitened: (A - mean) / sqrt(variance + 1e-8) over all tokens of the rollout");
  }
  out.push_back("R = " + sum);
  if (charged(options)) {
    out.push_back(fmt::format("KL = {} ({}), d = log p_old - log p_ref of the token",
                              losses::kl_estimators().get(options.kl.estimator).formula,
                              options.kl.estimator));
  }
  if (options.kl.target) {
    out.push_back(fmt::format(
        "the coefficient of KL follows a divergence of {} a completion, within {} completions",
        text::number(*options.kl.target),
        options.kl.horizon));
  }
  return out;
}

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
    out.add("group", {group, group_formula});
    out.add("leave_one_out", {leave_one_out, leave_one_out_formula});
    out.add("to_go", {to_go, to_go_formula});
    out.add("gae", {gae, gae_formula});
    out.add("dschat_gae", {dschat_gae, dschat_gae_formula});
    return out;
  }();
  return registry;
}

}  // namespace tessera::rlhf
