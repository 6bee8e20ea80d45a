// SPDX-License-Identifier: Apache-2.0
// Losses that are functions of the difference of a pair's two scores.
#include <cmath>

#include <ATen/ATen.h>

#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/pairs.h"

namespace tessera::losses {
namespace {

at::Tensor margins(const PairScores& of, double beta) {
  return beta * (of.chosen_scores_P - of.rejected_scores_P);
}

at::Tensor margins_per_token(const PairScores& of) {
  return of.chosen_scores_P / of.chosen_tokens_P.clamp_min(1) -
         of.rejected_scores_P / of.rejected_tokens_P.clamp_min(1);
}

/// Rafailov et al. 2023, eq. 7.
at::Tensor sigmoid(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(margins(of, options.beta));
}

/// The same with scores per token.
at::Tensor sigmoid_norm(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(options.beta * margins_per_token(of));
}

/// Labels that are wrong with probability e (Mitchell 2023).
at::Tensor conservative(const PairScores& of, const PairOptions& options) {
  return smoothed_logistic(margins(of, options.beta), options.label_smoothing);
}

/// An unbiased estimate of the loss with correct labels (Chowdhury et al. 2024).
at::Tensor robust(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta);
  const double e = options.label_smoothing;
  return (e * log_sigmoid_of(-x) - (1 - e) * log_sigmoid_of(x)) / (1 - 2 * e);
}

/// Zhao et al. 2023 (SLiC).
at::Tensor hinge(const PairScores& of, const PairOptions& options) {
  return at::relu(1 - margins(of, options.beta));
}

/// Azar et al. 2023, eq. 17, with scores per token.
at::Tensor ipo(const PairScores& of, const PairOptions& options) {
  return (margins_per_token(of) - 1 / (2 * options.beta)).square();
}

/// Ji et al. 2024, eq. 16: KL of the policy's choice from the smoothed label.
at::Tensor exo_pair(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta);
  const double e = options.label_smoothing;
  return at::sigmoid(x) * (log_sigmoid_of(x) - std::log1p(-e)) +
         at::sigmoid(-x) * (log_sigmoid_of(-x) - std::log(e));
}

/// Lu et al. 2024, eq. 5: a blend of the logistic and the exponential loss.
at::Tensor discopop(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta), blend = at::sigmoid(x / options.discopop_tau);
  return -log_sigmoid_of(x) * (1 - blend) + at::exp(-x) * blend;
}

TESSERA_PAIR_LOSS(sigmoid, {.losses = sigmoid});
TESSERA_PAIR_LOSS(sigmoid_norm, {.losses = sigmoid_norm});
TESSERA_PAIR_LOSS(cdpo, {.losses = conservative});
TESSERA_PAIR_LOSS(robust, {.losses = robust});
TESSERA_PAIR_LOSS(hinge, {.losses = hinge});
TESSERA_PAIR_LOSS(ipo, {.losses = ipo});
TESSERA_PAIR_LOSS(exo_pair, {.losses = exo_pair, .needs_smoothing = true});
TESSERA_PAIR_LOSS(discopop, {.losses = discopop});

}  // namespace
}  // namespace tessera::losses
