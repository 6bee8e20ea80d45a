// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/log_probabilities.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::losses {

at::Tensor token_log_probabilities(const at::Tensor& logits, const at::Tensor& ids) {
  TESSERA_REQUIRE(
      logits.dim() == ids.dim() + 1 && logits.sizes().slice(0, logits.dim() - 1) == ids.sizes(),
      Shape,
      "the ids of the tokens have another shape than their logits",
      "give one id for each row of logits");
  return at::gather(logits, -1, ids.unsqueeze(-1)).squeeze(-1) - at::logsumexp(logits, {-1});
}

at::Tensor token_entropies(const at::Tensor& logits) {
  const at::Tensor log_p = at::log_softmax(logits, -1);
  return -(log_p.exp() * log_p).sum(-1);
}

at::Tensor log_sums_of_squares(const at::Tensor& logits) {
  return at::logsumexp(2 * logits, {-1}) - 2 * at::logsumexp(logits, {-1});
}

at::Tensor masked_sums(const at::Tensor& values_BT, const at::Tensor& mask_BT) {
  return at::where(mask_BT.ne(0), values_BT, at::zeros({}, values_BT.options())).sum(1);
}

at::Tensor masked_means(const at::Tensor& values_BT, const at::Tensor& mask_BT) {
  const at::Tensor count_B = mask_BT.ne(0).sum(1).clamp_min(1).to(values_BT.scalar_type());
  return masked_sums(values_BT, mask_BT) / count_B;
}

at::Tensor masked_mean(const at::Tensor& values_BT, const at::Tensor& mask_BT) {
  const at::Tensor count = mask_BT.ne(0).sum().clamp_min(1).to(values_BT.scalar_type());
  return masked_sums(values_BT, mask_BT).sum() / count;
}

// ATen's own function has no kernel for meta tensors, with which memory is predicted.
at::Tensor log_sigmoid_of(const at::Tensor& x) {
  return -at::logaddexp(at::zeros_like(x), -x);
}

}  // namespace tessera::losses
