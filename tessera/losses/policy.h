// SPDX-License-Identifier: Apache-2.0
// Losses of a policy from the advantages of its completions: the clipped surrogate of PPO (Schulman
// et al. 2017) in the form of GRPO and its variants. To add one, add one function and list it in
// policy_losses().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: B completions, T tokens. L is T, or 1 if a completion has one ratio.
namespace tessera::losses {

/// The completions and their advantages.
struct PolicySample {
  at::Tensor log_probabilities_BT;  ///< under the policy; the only tensor with a gradient
  at::Tensor old_BT;        ///< under the policy that generated them; undefined: the current policy
  at::Tensor reference_BT;  ///< under the reference; undefined: no penalty
  at::Tensor mask_BT;       ///< tokens that the policy generated
  at::Tensor advantages;    ///< [B], or [B, T]
  at::Tensor entropies_BT;  ///< of the policy's distributions, if an option needs them
};

struct PolicyOptions {
  /// The ratio of a completion is e to the mean log-ratio of its tokens.
  bool sequence_level = false;
  double epsilon_low = 0.2, epsilon_high = 0.2;
  std::optional<double> delta;  ///< upper bound of ratios, also for negative advantages
  double kl_coefficient = 0.0;  ///< of the k3 estimate of the divergence from the reference
  bool corrected_kl = false;    ///< the estimate is multiplied by the ratio
  /// Only this share of the tokens, those with the largest entropy, contributes to the loss.
  double top_entropy_quantile = 1.0;
  /// Completions with a negative advantage and a larger mean log(old / policy) are excluded from
  /// the loss.
  std::optional<double> off_policy_threshold;
  double sapo_temperature_positive = 1.0, sapo_temperature_negative = 1.05;
  double vespo_k_positive = 2.0, vespo_lambda_positive = 3.0;
  double vespo_k_negative = 3.0, vespo_lambda_negative = 2.0;
};

/// The reduction of tokens' losses to one number: a sum and its divisor, so that a batch processed
/// in parts has the same loss.
enum class Aggregation : std::uint8_t {
  SequenceMeans,  ///< the mean over completions of the means over their tokens (GRPO)
  TokenMean,      ///< the mean over all tokens (DAPO; BNPO if a batch is not a part of another)
  FixedLength,    ///< the sum over tokens / (completions * the largest length) (Dr. GRPO)
  SequenceSums    ///< the mean over completions of the sums over their tokens
};
at::Tensor aggregated_sum(Aggregation how, const at::Tensor& losses_BT, const at::Tensor& mask_BT);
/// `longest`: the largest length of a completion, only for FixedLength.
double aggregated_count(Aggregation how, const at::Tensor& mask_BT, std::int64_t longest);
/// Returns the aggregation of the losses L as a phrase: "the mean over all tokens of L".
std::string aggregation_formula(Aggregation how, std::int64_t longest);

/// The inputs of a loss.
struct PolicyRatios {
  at::Tensor log_probabilities_BT, mask_BT, advantages;  ///< advantages [B, 1] or [B, T]
  at::Tensor log_ratios_BT, ratios_BL;                   ///< policy / old
};
struct PolicyLoss {
  at::Tensor (*losses)(const PolicyRatios& ratios, const PolicyOptions& options);  ///< -> [B, L]
  Aggregation aggregation = Aggregation::SequenceMeans;
  bool clips = false;  ///< ratios are clipped at 1 - epsilon_low and 1 + epsilon_high
  /// Returns the loss with the numbers of `options`, as a function of the ratio rho, the advantage
  /// A and the policy's probability p.
  std::string (*formula)(const PolicyOptions& options) = nullptr;
};
/// "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo".
const Registry<PolicyLoss>& policy_losses();

struct PolicyOutcome {
  at::Tensor losses_BT;        ///< with the penalty; for tokens of the mask
  at::Tensor kl_BT;            ///< the estimate; undefined without a reference
  at::Tensor low_BL, high_BL;  ///< bool: where clipping removes the gradient
  at::Tensor entropy_mask_BT;  ///< bool: the tokens with sufficient entropy
};
PolicyOutcome policy_loss(const PolicyLoss& loss,
                          const PolicySample& sample,
                          const PolicyOptions& options);

/// The tokens of the mask in the top `share` by entropy, bool.
at::Tensor high_entropy_tokens(const at::Tensor& entropies_BT,
                               const at::Tensor& mask_BT,
                               double share);

/// The clipped surrogate for whole completions with the ratios of their probabilities (RLOO), [B].
at::Tensor sequence_surrogate(const at::Tensor& log_probabilities_B,
                              const at::Tensor& old_B,
                              const at::Tensor& advantages_B,
                              double epsilon_low,
                              double epsilon_high);

}  // namespace tessera::losses
