// SPDX-License-Identifier: Apache-2.0
// Losses that are functions of the difference of a pair's two scores.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

at::Tensor margins(const PairScores& of, double beta) {
  return beta * (of.chosen_scores_P - of.rejected_scores_P);
}

std::string margin_formula(double beta) {
  return fmt::format("{} (sw - sl)", text::number(beta));
}

at::Tensor margins_per_token(const PairScores& of) {
  return of.chosen_scores_P / of.chosen_tokens_P.clamp_min(1) -
         of.rejected_scores_P / of.rejected_tokens_P.clamp_min(1);
}

/// Rafailov et al. 2023, eq. 7.
at::Tensor sigmoid(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(margins(of, options.beta));
}

std::string sigmoid_formula(const PairOptions& options) {
  return smoothed_logistic_formula(margin_formula(options.beta), 0.0);
}

/// The same with scores per token.
at::Tensor sigmoid_norm(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(options.beta * margins_per_token(of));
}

std::string sigmoid_norm_formula(const PairOptions& options) {
  return fmt::format("-log s({} (sw / nw - sl / nl))", text::number(options.beta));
}

/// Labels that are wrong with probability e (Mitchell 2023).
at::Tensor conservative(const PairScores& of, const PairOptions& options) {
  return smoothed_logistic(margins(of, options.beta), options.label_smoothing);
}

std::string conservative_formula(const PairOptions& options) {
  return smoothed_logistic_formula(margin_formula(options.beta), options.label_smoothing);
}

/// An unbiased estimate of the loss with correct labels (Chowdhury et al. 2024).
at::Tensor robust(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta);
  const double e = options.label_smoothing;
  return (e * log_sigmoid_of(-x) - (1 - e) * log_sigmoid_of(x)) / (1 - 2 * e);
}

std::string robust_formula(const PairOptions& options) {
  return fmt::format("({0} log s(-x) - (1 - {0}) log s(x)) / (1 - 2 x {0}) with x = {1}",
                     text::number(options.label_smoothing),
                     margin_formula(options.beta));
}

/// Zhao et al. 2023 (SLiC).
at::Tensor hinge(const PairScores& of, const PairOptions& options) {
  return at::relu(1 - margins(of, options.beta));
}

std::string hinge_formula(const PairOptions& options) {
  return fmt::format("max(0, 1 - {})", margin_formula(options.beta));
}

/// Azar et al. 2023, eq. 17, with scores per token.
at::Tensor ipo(const PairScores& of, const PairOptions& options) {
  return (margins_per_token(of) - 1 / (2 * options.beta)).square();
}

std::string ipo_formula(const PairOptions& options) {
  return fmt::format("(sw / nw - sl / nl - 1 / (2 x {}))^2", text::number(options.beta));
}

/// Ji et al. 2024, eq. 16: KL of the policy's choice from the smoothed label.
at::Tensor exo_pair(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta);
  const double e = options.label_smoothing;
  return at::sigmoid(x) * (log_sigmoid_of(x) - std::log1p(-e)) +
         at::sigmoid(-x) * (log_sigmoid_of(-x) - std::log(e));
}

std::string exo_pair_formula(const PairOptions& options) {
  return fmt::format("s(x) (log s(x) - log(1 - {0})) + s(-x) (log s(-x) - log({0})) with x = {1}",
                     text::number(options.label_smoothing),
                     margin_formula(options.beta));
}

/// Lu et al. 2024, eq. 5: a blend of the logistic and the exponential loss.
at::Tensor discopop(const PairScores& of, const PairOptions& options) {
  const at::Tensor x = margins(of, options.beta), blend = at::sigmoid(x / options.discopop_tau);
  return -log_sigmoid_of(x) * (1 - blend) + at::exp(-x) * blend;
}

std::string discopop_formula(const PairOptions& options) {
  return fmt::format("-log s(x) (1 - m) + e^-x m with x = {}, m = s(x / {})",
                     margin_formula(options.beta),
                     text::number(options.discopop_tau));
}

TESSERA_PAIR_LOSS(sigmoid, {.losses = sigmoid, .formula = sigmoid_formula});
TESSERA_PAIR_LOSS(sigmoid_norm, {.losses = sigmoid_norm, .formula = sigmoid_norm_formula});
TESSERA_PAIR_LOSS(cdpo, {.losses = conservative, .formula = conservative_formula});
TESSERA_PAIR_LOSS(robust, {.losses = robust, .formula = robust_formula});
TESSERA_PAIR_LOSS(hinge, {.losses = hinge, .formula = hinge_formula});
TESSERA_PAIR_LOSS(ipo, {.losses = ipo, .formula = ipo_formula});
TESSERA_PAIR_LOSS(exo_pair,
                  {.losses = exo_pair, .formula = exo_pair_formula, .needs_smoothing = true});
TESSERA_PAIR_LOSS(discopop, {.losses = discopop, .formula = discopop_formula});

}  // namespace
}  // namespace tessera::losses
