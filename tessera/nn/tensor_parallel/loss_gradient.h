// SPDX-License-Identifier: Apache-2.0
// Gradients of logits, the largest buffers of a step; heavy headers, for .cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/tensor/upload.h"

namespace tessera::nn::detail {

/// The gradient of a loss: products with `dlogits` are to be multiplied by `factor`.
struct LossGradient {
  at::Tensor dlogits;
  float factor = 1.0F;
};

/// Converts d loss / d logits to the `dtype` that the products read, times the `incoming` gradient.
/// The multiplication is left to the products where possible, which saves a pass over the largest
/// buffer of a step. If dlogits must be rounded first, they are multiplied before rounding, because
/// a gradient in fp16 needs the loss scale. Overwrites `dlogits`.
inline LossGradient loss_gradient(at::Tensor dlogits,
                                  const at::Tensor& incoming,
                                  at::ScalarType dtype) {
  // A factor has no value on meta; one that is not 1 has the same effect on memory.
  if (dlogits.is_meta()) return {dlogits.to(dtype), dlogits.scalar_type() == dtype ? 0.5F : 1.0F};
  if (dlogits.scalar_type() == dtype)
    return {std::move(dlogits), static_cast<float>(host_values(incoming).item<double>())};
  // Few rows at a time, so that the second operation finds them in the cache.
  constexpr std::int64_t kRows = 16;
  at::Tensor out = at::empty(dlogits.sizes(), dlogits.options().dtype(dtype));
  for (std::int64_t row = 0; row < out.size(0); row += kRows) {
    const std::int64_t count = std::min(kRows, out.size(0) - row);
    out.narrow(0, row, count).copy_(dlogits.narrow(0, row, count).mul_(incoming));
  }
  return {std::move(out)};
}

}  // namespace tessera::nn::detail
