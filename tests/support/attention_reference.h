// SPDX-License-Identifier: Apache-2.0
// Attention of a whole text and its gradients in float64, with all probabilities in memory.
#pragma once

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

namespace tessera::test {

struct AttentionReference {
  at::Tensor y, log_sum, dq, dk, dv;
};

/// q, k, v, dy [B, H, T, K]; mask [B, T] or undefined; kept [B, H, T, T]: 0 where dropout drops and
/// 1 / (1 - p) elsewhere, or undefined.
inline AttentionReference attention_reference(const at::Tensor& q_BHTK,
                                              const at::Tensor& k_BHTK,
                                              const at::Tensor& v_BHTK,
                                              const at::Tensor& dy_BHTK,
                                              bool causal,
                                              const at::Tensor& mask_BT = {},
                                              const at::Tensor& kept_BHTT = {}) {
  const at::Tensor q = q_BHTK.to(at::kDouble), k = k_BHTK.to(at::kDouble),
                   v = v_BHTK.to(at::kDouble), dy = dy_BHTK.to(at::kDouble);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (mask_BT.defined()) {
    scores = scores + ((1.0 - mask_BT.to(at::kDouble)) * -10000.0).unsqueeze(1).unsqueeze(1);
  }
  if (causal) {
    const at::Tensor place = at::arange(q.size(2));
    scores =
        scores.masked_fill(place.unsqueeze(1).lt(place), -std::numeric_limits<double>::infinity());
  }
  const at::Tensor log_sum = at::logsumexp(scores, at::IntArrayRef{3});
  const at::Tensor p = (scores - log_sum.unsqueeze(3)).exp();
  const at::Tensor kept = kept_BHTT.defined() ? kept_BHTT.to(at::kDouble) : at::ones_like(p);
  const at::Tensor dp = at::matmul(dy, v.transpose(2, 3)) * kept;
  const at::Tensor ds = p * (dp - (p * dp).sum(3, /*keepdim=*/true)) * scale;
  return {at::matmul(p * kept, v),
          log_sum,
          at::matmul(ds, k),
          at::matmul(ds.transpose(2, 3), q),
          at::matmul((p * kept).transpose(2, 3), dy)};
}

}  // namespace tessera::test
