// SPDX-License-Identifier: Apache-2.0
// Estimators of the Kullback-Leibler divergence of a policy from a reference, for each token
// sampled from the policy. Source: Schulman, "Approximating KL Divergence" (2020).
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"

namespace tessera::losses {

struct KlEstimator {
  /// Maps log-probabilities of the same tokens under the policy and the reference to estimates of
  /// the same shape. Differentiable with respect to the policy's.
  at::Tensor (*estimate)(const at::Tensor& log_probabilities, const at::Tensor& reference);
  const char* formula;  ///< with d = log p - log p_ref
  at::Tensor operator()(const at::Tensor& log_probabilities, const at::Tensor& reference) const {
    return estimate(log_probabilities, reference);
  }
};

/// By name, with d = log p - log p_ref: "k1" d, unbiased, whose gradient is noise with mean 0; "k2"
/// d^2 / 2, whose gradient is that of the divergence; "k3" e^-d + d - 1, unbiased and never
/// negative.
const Registry<KlEstimator>& kl_estimators();

}  // namespace tessera::losses
