// SPDX-License-Identifier: Apache-2.0
// Losses of each completion of a pair that depend only on its own ratio.
#include <ATen/ATen.h>

#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/pairs.h"

namespace tessera::losses {
namespace {

/// Chen et al. 2024 (NCA), of two completions.
at::Tensor nca_pair(const PairScores& of, const PairOptions& options) {
  const at::Tensor chosen = options.beta * of.chosen_ratios_P,
                   rejected = options.beta * of.rejected_ratios_P;
  return -log_sigmoid_of(chosen) - 0.5 * log_sigmoid_of(-chosen) - 0.5 * log_sigmoid_of(-rejected);
}

/// Jung et al. 2024 (BCO), with a reward shift of 0.
at::Tensor bco_pair(const PairScores& of, const PairOptions& options) {
  return -log_sigmoid_of(options.beta * of.chosen_ratios_P) -
         log_sigmoid_of(-options.beta * of.rejected_ratios_P);
}

/// Wu et al. 2024 (SPPO), where the chosen completion wins with certainty.
at::Tensor sppo_hard(const PairScores& of, const PairOptions& options) {
  const double aim = 0.5 / options.beta;
  return (of.chosen_ratios_P - aim).square() + (of.rejected_ratios_P + aim).square();
}

/// D'Oosterlinck et al. 2024 (APO), eq. 7.
at::Tensor apo_zero(const PairScores& of, const PairOptions& options) {
  return 1 - at::sigmoid(options.beta * of.chosen_ratios_P) +
         at::sigmoid(options.beta * of.rejected_ratios_P);
}

/// The same, eq. 8: for chosen completions that are worse than the model's own.
at::Tensor apo_down(const PairScores& of, const PairOptions& options) {
  return at::sigmoid(options.beta * of.chosen_ratios_P) + 1 -
         at::sigmoid(options.beta * (of.chosen_ratios_P - of.rejected_ratios_P));
}

/// The cross-entropy of the chosen completion.
at::Tensor sft(const PairScores& of, const PairOptions& /*options*/) {
  return -of.chosen_P;
}

TESSERA_PAIR_LOSS(nca_pair, {.losses = nca_pair});
TESSERA_PAIR_LOSS(bco_pair, {.losses = bco_pair});
TESSERA_PAIR_LOSS(sppo_hard, {.losses = sppo_hard});
TESSERA_PAIR_LOSS(apo_zero, {.losses = apo_zero});
TESSERA_PAIR_LOSS(apo_down, {.losses = apo_down});
TESSERA_PAIR_LOSS(sft, {.losses = sft, .reads_reference = false, .over_tokens = true});

}  // namespace
}  // namespace tessera::losses
