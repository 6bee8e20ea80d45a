// SPDX-License-Identifier: Apache-2.0
// Gradients of logits, the largest buffers of a step; heavy headers, for .cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>

namespace tessera::nn::detail {

/// Logits' gradient times the incoming one, in the dtype of the products that follow. Overwrites
/// `dlogits`.
inline at::Tensor scaled(const at::Tensor& dlogits,
                         const at::Tensor& factor,
                         at::ScalarType dtype) {
  if (dtype == dlogits.scalar_type()) return dlogits.mul_(factor);
  // A few rows at a time, so that the second operation finds them in the cache.
  constexpr std::int64_t kRows = 16;
  at::Tensor out = at::empty(dlogits.sizes(), dlogits.options().dtype(dtype));
  for (std::int64_t row = 0; row < out.size(0); row += kRows) {
    const std::int64_t count = std::min(kRows, out.size(0) - row);
    out.narrow(0, row, count).copy_(dlogits.narrow(0, row, count).mul_(factor));
  }
  return out;
}

}  // namespace tessera::nn::detail
