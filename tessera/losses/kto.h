// SPDX-License-Identifier: Apache-2.0
// Losses of single completions that are labelled as wanted or not: KTO (Ethayarajh et al. 2024,
// eq. 7) and the form of APO-zero without pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

// Legend: B completions.
namespace tessera::losses {

struct KtoOptions {
  double beta = 0.1;
  double desirable_weight = 1.0, undesirable_weight = 1.0;
};
struct KtoLoss {
  /// log(policy / reference), whether each is wanted, and the divergence -> the loss of each, not
  /// yet weighted.
  at::Tensor (*losses)(const at::Tensor& ratios_B,
                       const at::Tensor& wanted_B,
                       const at::Tensor& divergence,
                       double beta);
  bool reads_divergence = true;
};
/// "kto", "apo_zero_unpaired".
const Registry<KtoLoss>& kto_losses();
/// The point of reference: the mean of log(policy / reference) over completions that answer other
/// prompts, at least 0 and held constant; 0 where there are none. [B] -> 0-d.
at::Tensor kto_divergence(const at::Tensor& mismatched_ratios_B);
/// The weighted loss of each completion, [B]. `wanted_B`: bool.
at::Tensor kto(const KtoLoss& loss,
               const at::Tensor& ratios_B,
               const at::Tensor& wanted_B,
               const at::Tensor& divergence,
               const KtoOptions& options);

}  // namespace tessera::losses
