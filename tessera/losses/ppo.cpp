// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/ppo.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/advantages.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {

PpoExperience ppo_experience(const at::Tensor& log_probabilities_BT,
                             const at::Tensor& reference_BT,
                             const at::Tensor& values_BT,
                             const at::Tensor& scores_B,
                             const at::Tensor& mask_BT,
                             std::int64_t start,
                             const PpoOptions& options) {
  const std::int64_t T = log_probabilities_BT.size(1);
  const at::Tensor answered_B = mask_BT.narrow(1, start, T - start).ne(0).sum(1).to(at::kLong);
  const at::Tensor places_T = at::arange(T, answered_B.options());
  PpoExperience out;
  out.ends_B = answered_B + (start + 1);
  const at::Tensor last_B1 = (out.ends_B - 1).clamp_max(T - 1).unsqueeze(1);
  const at::Tensor charged_BT =
      -options.kl_coefficient * (log_probabilities_BT - reference_BT).detach();
  const at::Tensor score_B1 =
      scores_B.detach().clamp(-options.clip_reward, options.clip_reward).unsqueeze(1);
  const at::Tensor zero = at::zeros({}, charged_BT.options());
  const at::Tensor inside_BT = places_T.lt(out.ends_B.unsqueeze(1));
  out.rewards_BT =
      at::where(inside_BT, charged_BT + at::where(places_T.eq(last_B1), score_B1, zero), zero);
  out.values_BT = at::where(inside_BT, values_BT.detach(), zero);
  const Gae gae = generalized_advantages({.rewards_BT = out.rewards_BT.narrow(1, start, T - start),
                                          .values_BT = out.values_BT.narrow(1, start, T - start)},
                                         {.gamma = options.gamma, .lambda = options.lambda});
  out.advantages_BA = gae.advantages_BT;
  out.returns_BA = gae.returns_BT;
  return out;
}

at::Tensor ppo_actor_loss(const at::Tensor& log_probabilities_BA,
                          const at::Tensor& old_BA,
                          const at::Tensor& advantages_BA,
                          const at::Tensor& mask_BA,
                          double clip_range) {
  const at::Tensor mask = mask_BA.ne(0).to(log_probabilities_BA.scalar_type());
  const at::Tensor ratios_BA = ((log_probabilities_BA - old_BA) * mask).exp();
  const at::Tensor clipped_BA = ratios_BA.clamp(1 - clip_range, 1 + clip_range);
  return masked_mean(at::maximum(-advantages_BA * ratios_BA, -advantages_BA * clipped_BA), mask_BA);
}

at::Tensor ppo_critic_loss(const at::Tensor& values_BA,
                           const at::Tensor& old_BA,
                           const at::Tensor& returns_BA,
                           const at::Tensor& mask_BA,
                           double clip_range) {
  const at::Tensor held_BA =
      at::minimum(at::maximum(values_BA, old_BA - clip_range), old_BA + clip_range);
  return 0.5 * masked_mean(
                   at::maximum((values_BA - returns_BA).square(), (held_BA - returns_BA).square()),
                   mask_BA);
}

std::string ppo_critic_formula(double clip_range) {
  return fmt::format(
      "1/2 the mean over all tokens of max((V - R)^2, (clip(V, V_old - {0}, V_old + {0}) - R)^2)",
      text::number(clip_range));
}

}  // namespace tessera::losses
