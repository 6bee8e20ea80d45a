// SPDX-License-Identifier: Apache-2.0
// Proximal policy optimisation of token sequences with a critic, as DeepSpeed-Chat computes it.
// Column t of a tensor [B, T] speaks of the token behind token t of the text, so that T is one less
// than the texts' length.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

// Legend: B texts, T tokens, A tokens from the first answered one on.
namespace tessera::losses {

struct PpoOptions {
  double kl_coefficient = 0.1, clip_reward = 5.0;
  double clip_range = 0.2, clip_range_value = 0.2;
  double gamma = 1.0, lambda = 0.95;
};

/// What becomes of texts before they are learned from. Nothing has a gradient.
struct PpoExperience {
  at::Tensor rewards_BT, values_BT;      ///< 0 behind the texts
  at::Tensor ends_B;                     ///< int64: behind the last column that counts
  at::Tensor advantages_BA, returns_BA;  ///< of the columns from `start` on, not whitened
};
/// Every token is charged kl_coefficient * log(policy / reference), and the column behind the
/// answer, or the last one, gets the clipped score. `mask_BT`: tokens that are no padding; `start`:
/// the first column of the answer, the prompt's length - 1.
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
/// Half the mean over the mask of the larger squared error, of the value and of the value that is
/// held within `clip_range` of the old one. [B, A] -> 0-d.
at::Tensor ppo_critic_loss(const at::Tensor& values_BA,
                           const at::Tensor& old_BA,
                           const at::Tensor& returns_BA,
                           const at::Tensor& mask_BA,
                           double clip_range);

}  // namespace tessera::losses
