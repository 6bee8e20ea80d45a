// SPDX-License-Identifier: Apache-2.0
// Losses of each completion of a pair that depend only on its own ratio.
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

/// Chen et al. 2024 (NCA), of two completions.
at::Tensor nca_pair(const PairScores& of, const PairOptions& options) {
  const at::Tensor chosen = options.beta * of.chosen_ratios_P,
                   rejected = options.beta * of.rejected_ratios_P;
  return -log_sigmoid_of(chosen) - 0.5 * log_sigmoid_of(-chosen) - 0.5 * log_sigmoid_of(-rejected);
}

std::string nca_pair_formula(const PairOptions& options) {
  return fmt::format("-log s({0} lw) - 1/2 log s(-{0} lw) - 1/2 log s(-{0} ll)",
                     text::number(options.beta));
}

/// Jung et al. 2024 (BCO), with a reward shift of 0.
at::Tensor bco_pair(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(options.beta * of.chosen_ratios_P) -
         log_sigmoid_of(-options.beta * of.rejected_ratios_P);
}

std::string bco_pair_formula(const PairOptions& options) {
  return fmt::format("-log s({0} lw) - log s(-{0} ll)", text::number(options.beta));
}

/// Wu et al. 2024 (SPPO), where the chosen completion wins with certainty.
at::Tensor sppo_hard(const PairScores& of, const PairOptions& options) {
  const double aim = 0.5 / options.beta;
  return (of.chosen_ratios_P - aim).square() + (of.rejected_ratios_P + aim).square();
}

std::string sppo_hard_formula(const PairOptions& options) {
  return fmt::format("(lw - 1 / (2 x {0}))^2 + (ll + 1 / (2 x {0}))^2", text::number(options.beta));
}

/// D'Oosterlinck et al. 2024 (APO), eq. 7.
at::Tensor apo_zero(const PairScores& of, const PairOptions& options) {
  return 1 - at::sigmoid(options.beta * of.chosen_ratios_P) +
         at::sigmoid(options.beta * of.rejected_ratios_P);
}

std::string apo_zero_formula(const PairOptions& options) {
  return fmt::format("1 - s({0} lw) + s({0} ll)", text::number(options.beta));
}

/// The same, eq. 8: for chosen completions that are worse than the model's own.
at::Tensor apo_down(const PairScores& of, const PairOptions& options) {
  return at::sigmoid(options.beta * of.chosen_ratios_P) + 1 -
         at::sigmoid(options.beta * (of.chosen_ratios_P - of.rejected_ratios_P));
}

std::string apo_down_formula(const PairOptions& options) {
  return fmt::format("s({0} lw) + 1 - s({0} (lw - ll))", text::number(options.beta));
}

/// The cross-entropy of the chosen completion.
at::Tensor sft(const PairScores& of, const PairOptions& /*options*/) {
  return -of.chosen_P;
}

std::string sft_formula(const PairOptions& /*options*/) {
  return "-log p of the chosen completion";
}

TESSERA_PAIR_LOSS(nca_pair, {.losses = nca_pair, .formula = nca_pair_formula});
TESSERA_PAIR_LOSS(bco_pair, {.losses = bco_pair, .formula = bco_pair_formula});
TESSERA_PAIR_LOSS(sppo_hard, {.losses = sppo_hard, .formula = sppo_hard_formula});
TESSERA_PAIR_LOSS(apo_zero, {.losses = apo_zero, .formula = apo_zero_formula});
TESSERA_PAIR_LOSS(apo_down, {.losses = apo_down, .formula = apo_down_formula});
TESSERA_PAIR_LOSS(
    sft, {.losses = sft, .formula = sft_formula, .reads_reference = false, .over_tokens = true});

}  // namespace
}  // namespace tessera::losses
