// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/kto.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"

namespace tessera::losses {
namespace {

/// `x` if the completion is desirable, else -x.
at::Tensor towards(const at::Tensor& x_B, const at::Tensor& wanted_B) {
  return at::where(wanted_B, x_B, -x_B);
}

at::Tensor prospect(const at::Tensor& ratios_B,
                    const at::Tensor& wanted_B,
                    const at::Tensor& divergence,
                    double beta) {
  return 1 - at::sigmoid(beta * towards(ratios_B - divergence, wanted_B));
}

std::string prospect_formula(double beta) {
  return fmt::format("1 - s({0} (l - z)) if desirable, 1 - s({0} (z - l)) if not",
                     text::number(beta));
}

at::Tensor apo_zero_unpaired(const at::Tensor& ratios_B,
                             const at::Tensor& wanted_B,
                             const at::Tensor& /*divergence*/,
                             double beta) {
  return 1 - at::sigmoid(beta * towards(ratios_B, wanted_B));
}

std::string apo_zero_unpaired_formula(double beta) {
  return fmt::format("1 - s({0} l) if desirable, 1 - s(-{0} l) if not", text::number(beta));
}

}  // namespace

const Registry<KtoLoss>& kto_losses() {
  static const Registry<KtoLoss> registry = [] {
    Registry<KtoLoss> out("loss of labelled completions");
    out.add("kto", {.losses = prospect, .formula = prospect_formula});
    out.add("apo_zero_unpaired",
            {.losses = apo_zero_unpaired,
             .formula = apo_zero_unpaired_formula,
             .reads_divergence = false});
    return out;
  }();
  return registry;
}

at::Tensor kto_divergence(const at::Tensor& mismatched_ratios_B) {
  if (mismatched_ratios_B.numel() == 0) return at::zeros({}, mismatched_ratios_B.options());
  return mismatched_ratios_B.detach().mean().clamp_min(0);
}

at::Tensor kto(const KtoLoss& loss,
               const at::Tensor& ratios_B,
               const at::Tensor& wanted_B,
               const at::Tensor& divergence,
               const KtoOptions& options) {
  const at::Tensor one = at::ones({}, ratios_B.options());
  const at::Tensor weights_B =
      at::where(wanted_B, one * options.desirable_weight, one * options.undesirable_weight);
  return weights_B * loss.losses(ratios_B, wanted_B, divergence, options.beta);
}

}  // namespace tessera::losses
