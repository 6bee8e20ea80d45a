// SPDX-License-Identifier: Apache-2.0
// Proximal policy optimization of token sequences with a critic, as in DeepSpeed-Chat. Column t of
// a tensor [B, T] refers to the token after token t, so T is one less than the length of the
// sequences.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

// Legend: B sequences, T tokens, A tokens from the first answer token on.
namespace tessera::losses {

struct PpoOptions {
  double kl_coefficient = 0.1, clip_reward = 5.0;
  double clip_range = 0.2, clip_range_value = 0.2;
  double gamma = 1.0, lambda = 0.95;
};

/// The quantities derived from sequences before learning. Nothing has a gradient.
struct PpoExperience {
  at::Tensor rewards_BT, values_BT;      ///< 0 after the sequences
  at::Tensor ends_B;                     ///< int64: after the last column that counts
  at::Tensor advantages_BA, returns_BA;  ///< for the columns from `start` on, not whitened
};
/// The reward of every token is -kl_coefficient * log(policy / reference); the column after the
/// answer, or the last one, additionally gets the clipped score. `mask_BT`: tokens that are not
/// padding; `start`: the first column of the answer, the prompt's length - 1.
PpoExperience ppo_experience(const at::Tensor& log_probabilities_BT,
                             const at::Tensor& reference_BT,
                             const at::Tensor& values_BT,
                             const at::Tensor& scores_B,
                             const at::Tensor& mask_BT,
                             std::int64_t start,
                             const PpoOptions& options);

/// The mean over the mask of the clipped surrogate. [B, A] -> 0-d.
at::Tensor ppo_actor_loss(const at::Tensor& log_probabilities_BA,
                          const at::Tensor& old_BA,
                          const at::Tensor& advantages_BA,
                          const at::Tensor& mask_BA,
                          double clip_range);
/// Half the mean over the mask of the larger squared error, of the value and of the value clipped
/// to within `clip_range` of the old one. [B, A] -> 0-d.
at::Tensor ppo_critic_loss(const at::Tensor& values_BA,
                           const at::Tensor& old_BA,
                           const at::Tensor& returns_BA,
                           const at::Tensor& mask_BA,
                           double clip_range);
/// Returns ppo_critic_loss() as a formula of the value V and the return R.
std::string ppo_critic_formula(double clip_range);

}  // namespace tessera::losses
