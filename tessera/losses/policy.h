// SPDX-License-Identifier: Apache-2.0
// Losses of a policy by the advantages of what it wrote: the clipped surrogate of PPO (Schulman et
// al. 2017) as GRPO and its kin have it. Adding one is one function that policy_losses() names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: B completions, T tokens. L is T, or 1 where a completion has one ratio.
namespace tessera::losses {

/// What was written, and what it is worth.
struct PolicySample {
  at::Tensor log_probabilities_BT;  ///< under the policy; the only tensor that has a gradient
  at::Tensor old_BT;        ///< under the policy that wrote it; undefined: the policy itself
  at::Tensor reference_BT;  ///< under the reference; undefined: there is no penalty
  at::Tensor mask_BT;       ///< tokens that the policy chose
  at::Tensor advantages;    ///< [B], or [B, T]
  at::Tensor entropies_BT;  ///< of the policy's choices, where an option reads them
};

struct PolicyOptions {
  bool sequence_level = false;  ///< the ratio of a completion is e to its tokens' mean log-ratio
  double epsilon_low = 0.2, epsilon_high = 0.2;
  std::optional<double> delta;  ///< bounds ratios from above, also where the advantage is negative
  double kl_coefficient = 0.0;  ///< of the k3 estimate of the divergence from the reference
  bool corrected_kl = false;    ///< the estimate is multiplied by the ratio
  /// Only this share of the tokens, those of the largest entropy, enters the loss.
  double top_entropy_quantile = 1.0;
  /// Completions of negative advantage whose mean log(old / policy) is larger leave the loss.
  std::optional<double> off_policy_threshold;
  double sapo_temperature_positive = 1.0, sapo_temperature_negative = 1.05;
  double vespo_k_positive = 2.0, vespo_lambda_positive = 3.0;
  double vespo_k_negative = 3.0, vespo_lambda_negative = 2.0;
};

/// How tokens' losses become one number: a sum, and what it is divided by, so that a batch in parts
/// has the same loss.
enum class Aggregation : std::uint8_t {
  SequenceMeans,  ///< the mean over completions of the means over their tokens (GRPO)
  TokenMean,      ///< the mean over all tokens (DAPO; BNPO where a batch is no part of another)
  FixedLength,    ///< the sum over tokens / (completions * the largest length) (Dr. GRPO)
  SequenceSums    ///< the mean over completions of the sums over their tokens
};
at::Tensor aggregated_sum(Aggregation how, const at::Tensor& losses_BT, const at::Tensor& mask_BT);
/// `longest`: the largest length of a completion, of FixedLength alone.
double aggregated_count(Aggregation how, const at::Tensor& mask_BT, std::int64_t longest);

/// What a loss is a function of.
struct PolicyRatios {
  at::Tensor log_probabilities_BT, mask_BT, advantages;  ///< advantages [B, 1] or [B, T]
  at::Tensor log_ratios_BT, ratios_BL;                   ///< policy / old
};
struct PolicyLoss {
  at::Tensor (*losses)(const PolicyRatios& ratios, const PolicyOptions& options);  ///< -> [B, L]
  Aggregation aggregation = Aggregation::SequenceMeans;
  bool clips = false;  ///< whether ratios are clipped at 1 - epsilon_low and 1 + epsilon_high
};
/// "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo".
const Registry<PolicyLoss>& policy_losses();

struct PolicyOutcome {
  at::Tensor losses_BT;        ///< with the penalty; of tokens of the mask
  at::Tensor kl_BT;            ///< the estimate; undefined without a reference
  at::Tensor low_BL, high_BL;  ///< bool: where a clipped ratio takes the gradient away
  at::Tensor entropy_mask_BT;  ///< bool: the tokens whose entropy is large enough
};
PolicyOutcome policy_loss(const PolicyLoss& loss,
                          const PolicySample& sample,
                          const PolicyOptions& options);

/// The tokens of the mask whose entropy is at least the quantile `share` from above, bool.
at::Tensor high_entropy_tokens(const at::Tensor& entropies_BT,
                               const at::Tensor& mask_BT,
                               double share);

/// The clipped surrogate of whole completions by the ratios of their probabilities (RLOO), [B].
at::Tensor sequence_surrogate(const at::Tensor& log_probabilities_B,
                              const at::Tensor& old_B,
                              const at::Tensor& advantages_B,
                              double epsilon_low,
                              double epsilon_high);

}  // namespace tessera::losses
