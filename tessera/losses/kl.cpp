// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/kl.h"

#include <ATen/ATen.h>

namespace tessera::losses {
namespace {

at::Tensor k1(const at::Tensor& log_probabilities, const at::Tensor& reference) {
  return log_probabilities - reference;
}
at::Tensor k2(const at::Tensor& log_probabilities, const at::Tensor& reference) {
  return 0.5 * (log_probabilities - reference).square();
}
at::Tensor k3(const at::Tensor& log_probabilities, const at::Tensor& reference) {
  const at::Tensor r = log_probabilities - reference;
  return at::exp(-r) + r - 1;
}

}  // namespace

const Registry<KlEstimator>& kl_estimators() {
  static const Registry<KlEstimator> registry = [] {
    Registry<KlEstimator> out("estimator of the divergence");
    out.add("k1", {k1, "d"});
    out.add("k2", {k2, "d^2 / 2"});
    out.add("k3", {k3, "e^-d + d - 1"});
    return out;
  }();
  return registry;
}

}  // namespace tessera::losses
