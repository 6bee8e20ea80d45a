// SPDX-License-Identifier: Apache-2.0
// Losses of single completions labelled as desirable or undesirable: KTO (Ethayarajh et al. 2024,
// eq. 7) and the unpaired form of APO-zero.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: B completions.
namespace tessera::losses {

struct KtoOptions {
  double beta = 0.1;
  double desirable_weight = 1.0, undesirable_weight = 1.0;
};
struct KtoLoss {
  /// Maps log(policy / reference), the labels and the divergence to the unweighted loss of each
  /// completion.
  at::Tensor (*losses)(const at::Tensor& ratios_B,
                       const at::Tensor& wanted_B,
                       const at::Tensor& divergence,
                       double beta);
  /// Returns the unweighted loss of a desirable and of an undesirable completion as a formula of
  /// l = log(policy / reference), the logistic function s and the divergence z.
  std::string (*formula)(double beta) = nullptr;
  bool reads_divergence = true;
};
/// "kto", "apo_zero_unpaired".
const Registry<KtoLoss>& kto_losses();
/// The reference point: the mean of log(policy / reference) over completions that answer other
/// prompts, at least 0 and without a gradient; 0 if there are none. [B] -> 0-d.
at::Tensor kto_divergence(const at::Tensor& mismatched_ratios_B);
/// The weighted loss of each completion, [B]. `wanted_B`: bool.
at::Tensor kto(const KtoLoss& loss,
               const at::Tensor& ratios_B,
               const at::Tensor& wanted_B,
               const at::Tensor& divergence,
               const KtoOptions& options);

}  // namespace tessera::losses
