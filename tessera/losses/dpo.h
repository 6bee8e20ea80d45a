// SPDX-License-Identifier: Apache-2.0
// Losses of preference optimization on pairs of a chosen and a rejected completion of one prompt
// (direct preference optimization and its variants). To add one, add one function in a file of
// losses/dpo/ and register it with TESSERA_PAIR_LOSS.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: P pairs, T tokens.
namespace tessera::losses {

/// Log-probabilities of the pairs' completions, summed over their tokens, and the numbers of
/// tokens.
struct PairLogProbabilities {
  at::Tensor chosen_P, rejected_P;                      ///< of the policy, differentiable
  at::Tensor reference_chosen_P, reference_rejected_P;  ///< of the reference; 0 without one
  at::Tensor chosen_tokens_P, rejected_tokens_P;        ///< in the same dtype
  /// If chosen_P weights some tokens less: the sum without weights.
  at::Tensor chosen_unweighted_P = {};
};

struct PairOptions {
  double beta = 0.1;             ///< strength of the penalty for leaving the reference
  double label_smoothing = 0.0;  ///< probability that a pair was labelled the wrong way round
  double discopop_tau = 0.05;
};

/// The inputs of the losses. `ratios` are log(policy / reference); `scores` are the ratios
/// transformed by an f-divergence, and for the reverse KL divergence the ratios themselves.
struct PairScores {
  at::Tensor chosen_ratios_P, rejected_ratios_P;
  at::Tensor chosen_scores_P, rejected_scores_P;
  at::Tensor policy_margins_P, reference_margins_P;  ///< log-probability of chosen minus rejected
  at::Tensor chosen_tokens_P, rejected_tokens_P;
  at::Tensor chosen_P;  ///< the log-probability itself, without weights of tokens
};

struct PairLoss {
  /// Maps scores to the loss of each pair, [P].
  at::Tensor (*losses)(const PairScores& scores, const PairOptions& options);
  /// Returns the loss with the numbers of `options`, in the symbols of kPairSymbols.
  std::string (*formula)(const PairOptions& options) = nullptr;
  bool reads_reference = true;
  /// A pair's loss depends on the other pairs of the batch.
  bool reads_batch = false;
  /// The sum of the losses is divided by the number of chosen tokens instead of pairs.
  bool over_tokens = false;
  /// Requires a label smoothing strictly between 0 and 1/2.
  bool needs_smoothing = false;
};
/// The symbols of formulas of pairs.
inline constexpr const char* kPairSymbols =
    "lw and ll are log(policy / reference) of the chosen and the rejected completion, sw and sl "
    "their scores, nw and nl their tokens, s the logistic function";
/// By the names of TRL's trainers.
Registry<PairLoss>& pair_losses();
#define TESSERA_PAIR_LOSS(name, ...)           \
  static const bool tessera_pair_loss_##name = \
      ::tessera::losses::pair_losses().add(#name, __VA_ARGS__)

/// Converts ratios to scores, f'(policy / reference). Source: Wang et al., "Beyond Reverse KL"
/// (2023).
struct Divergence {
  at::Tensor (*score)(const at::Tensor& ratios, double alpha);
  const char* formula;  ///< the score of a ratio l, with the order a
};
/// "reverse_kl", "forward_kl", "js_divergence", "alpha_divergence".
const Registry<Divergence>& divergences();

/// Throws Error{Shape} unless all six tensors have the same size.
PairScores pair_scores(const PairLogProbabilities& of,
                       const Divergence& divergence,
                       double alpha = 1.0);

/// The weight of each token in its completion's log-probability, if tokens beyond the common length
/// of both completions have the weight `alpha` (length-desensitized DPO, Liu et al. 2024).
/// `mask_PT`: the tokens of one completion of each pair; `shared_P`: the shorter of the two
/// lengths. -> [P, T] in the dtype of `like`.
at::Tensor tail_weights(const at::Tensor& mask_PT,
                        const at::Tensor& shared_P,
                        double alpha,
                        const at::Tensor& like);

/// The weight of a completion, exp of the mean over its tokens of log p - log sum p^2, without a
/// gradient (WPO, Zhou et al. 2024); the weight of a pair is the product of its two. [P, T] -> [P].
at::Tensor on_policy_weights(const at::Tensor& log_probabilities_PT,
                             const at::Tensor& log_sums_of_squares_PT,
                             const at::Tensor& mask_PT);

/// (1 - e) * -log sigmoid(x) + e * -log sigmoid(-x): the loss of a pair with the margin `x` whose
/// label is wrong with probability e.
at::Tensor smoothed_logistic(const at::Tensor& x, double label_smoothing);
/// Returns smoothed_logistic() of the expression `x` as a formula.
std::string smoothed_logistic_formula(const std::string& x, double label_smoothing);

}  // namespace tessera::losses
