// SPDX-License-Identifier: Apache-2.0
// Alignment by optimal transport (Melnyk et al. 2024): the batch distribution for desirable
// completions is pushed above that for undesirable ones, quantile by quantile.
#include <string>
#include <tuple>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/dpo.h"

namespace tessera::losses {
namespace {

at::Tensor sorted(const at::Tensor& values_P) {
  return std::get<0>(at::sort(values_P, 0));
}

/// Margins of the policy against those of the reference.
at::Tensor aot(const PairScores& of, const PairOptions& options) {
  return smoothed_logistic(
      options.beta * (sorted(of.policy_margins_P) - sorted(of.reference_margins_P)),
      options.label_smoothing);
}

std::string aot_formula(const PairOptions& options) {
  return smoothed_logistic_formula(fmt::format("{} (m - m_ref)", text::number(options.beta)),
                                   options.label_smoothing) +
         ", where m and m_ref are the differences of both log-probabilities, each sorted over the "
         "micro-batch";
}

/// Ratios of chosen completions against those of rejected ones, whatever their prompts.
at::Tensor aot_unpaired(const PairScores& of, const PairOptions& options) {
  return smoothed_logistic(
      options.beta * (sorted(of.chosen_ratios_P) - sorted(of.rejected_ratios_P)),
      options.label_smoothing);
}

std::string aot_unpaired_formula(const PairOptions& options) {
  return smoothed_logistic_formula(fmt::format("{} (lw - ll)", text::number(options.beta)),
                                   options.label_smoothing) +
         ", where lw and ll are sorted over the micro-batch";
}

TESSERA_PAIR_LOSS(aot, {.losses = aot, .formula = aot_formula, .reads_batch = true});
TESSERA_PAIR_LOSS(aot_unpaired,
                  {.losses = aot_unpaired, .formula = aot_unpaired_formula, .reads_batch = true});

}  // namespace
}  // namespace tessera::losses
