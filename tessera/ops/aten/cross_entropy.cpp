// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {

at::Tensor AtenBackend::cross_entropy(const at::Tensor& logits_NV,
                                      const at::Tensor& labels_N,
                                      double label_smoothing,
                                      const at::Tensor& dlogits_NV) const {
  const auto V = static_cast<double>(logits_NV.size(1));
  const at::Tensor ignored = (labels_N == kIgnoreLabel).view({-1, 1});
  const at::Tensor labels = labels_N.view({-1, 1}).masked_fill(ignored, 0);
  const at::Tensor largest = logits_NV.amax(1, /*keepdim=*/true);
  const at::Tensor exponentials = (logits_NV - largest).exp_();
  const at::Tensor sums = exponentials.sum(1, /*keepdim=*/true, at::kDouble);
  const at::Tensor log_sum = largest.to(at::kDouble) + sums.log();
  const at::Tensor at_label = logits_NV.gather(1, labels).to(at::kDouble);
  at::Tensor losses = (1.0 - label_smoothing) * (log_sum - at_label);
  if (label_smoothing > 0.0) {
    const at::Tensor mean = logits_NV.sum(1, /*keepdim=*/true, at::kDouble) / V;
    losses = losses + label_smoothing * (log_sum - mean);
  }
  const at::Tensor loss = losses.masked_fill(ignored, 0.0).sum();
  if (!dlogits_NV.defined()) return loss;
  const at::Tensor shares = at::full_like(at_label, label_smoothing - 1.0, at::kFloat);
  at::Tensor d = exponentials.mul_(sums.reciprocal().to(at::kFloat)).sub_(label_smoothing / V);
  dlogits_NV.copy_(d.scatter_add_(1, labels, shares).masked_fill_(ignored, 0.0));
  return loss;
}

void AtenBackend::exp_rows(const at::Tensor& logits_NV,
                           const at::Tensor& largest_N,
                           const at::Tensor& sums_N) const {
  const at::Tensor largest = logits_NV.amax(1, /*keepdim=*/true);
  logits_NV.sub_(largest).exp_();
  largest_N.copy_(largest.view(largest_N.sizes()));
  sums_N.copy_(logits_NV.sum(1, /*keepdim=*/false, at::kDouble).view(sums_N.sizes()));
}

}  // namespace tessera::ops::aten
