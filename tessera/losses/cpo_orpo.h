// SPDX-License-Identifier: Apache-2.0
// Losses of pairs that need no reference: CPO (Xu et al. 2024), SimPO (Meng et al. 2024), AlphaPO
// (Gupta et al. 2025) and ORPO (Hong et al. 2024).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: P pairs.
namespace tessera::losses {

struct CpoOptions {
  double beta = 0.1;
  double label_smoothing = 0.0;
  double gamma = 0.5;  ///< SimPO's target margin
  double alpha = 0.0;  ///< AlphaPO: rewards (1 - p^-alpha) / alpha; 0: their limit, log p
};
/// A loss of this kind.
struct CpoLoss {
  at::Tensor (*losses)(const at::Tensor& margins_P, const CpoOptions& options);
  /// Returns the loss of the margin m of a pair with the numbers of `options`.
  std::string (*formula)(const CpoOptions& options) = nullptr;
  bool of_means = false;  ///< log-probabilities are means over tokens instead of sums
};
/// "sigmoid", "hinge", "ipo", "simpo".
const Registry<CpoLoss>& cpo_losses();
/// The rewards without the factor beta: log-probabilities [P], transformed by alpha.
at::Tensor cpo_rewards(const at::Tensor& log_probabilities_P, const CpoOptions& options);
/// The loss of each pair, [P].
at::Tensor cpo(const CpoLoss& loss,
               const at::Tensor& chosen_P,
               const at::Tensor& rejected_P,
               const CpoOptions& options);

/// The logarithm of the ratio of the odds p / (1 - p), from log-probabilities that are means over
/// tokens.
at::Tensor log_odds_ratios(const at::Tensor& chosen_P, const at::Tensor& rejected_P);
/// ORPO's odds-ratio loss of each pair, -beta log sigmoid(log odds ratio); the cross-entropy of the
/// chosen text is added to its mean.
at::Tensor orpo(const at::Tensor& chosen_P, const at::Tensor& rejected_P, double beta);

}  // namespace tessera::losses
