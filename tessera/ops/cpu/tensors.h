// SPDX-License-Identifier: Apache-2.0
// Helpers between tensors and the kernels' raw pointers. Include in .cpp files only.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/kernels.h"

namespace tessera::ops::cpu {

/// The kernels' type for a tensor's dtype; throws Error{Unsupported} for others.
inline Float float_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return kF32;
  if (x.scalar_type() == at::kBFloat16) return kBF16;
  TESSERA_REQUIRE(x.scalar_type() == at::kHalf,
                  Unsupported,
                  std::string("a tensor of ") + c10::toString(x.scalar_type()),
                  "use float, bfloat16 or half");
  return kF16;
}

/// Up to this number of elements a call into libtorch takes longer than the work.
constexpr std::int64_t kFewElements = 16384;

/// The tensor as fp32 in row-major order; not copied if it already is.
inline at::Tensor plain_float(const at::Tensor& x) {
  const bool few = x.is_contiguous() && x.numel() <= kFewElements && !x.is_meta() &&
                   (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
  if (!few) return x.to(at::kFloat).contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  kernels().widen_rows[float_of(x)]({x.data_ptr(), 0}, x.numel(), y.data_ptr<float>(), 1);
  return y;
}

/// Rounds contiguous fp32 to `dtype` once, ties to even.
inline at::Tensor rounded(const at::Tensor& x, at::ScalarType dtype) {
  const bool few = x.numel() <= kFewElements && (dtype == at::kBFloat16 || dtype == at::kHalf);
  if (!few) return x.to(dtype);
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(dtype));
  const StridedRows row{y.data_ptr(), 0};
  kernels().round_rows[float_of(y)](x.data_ptr<float>(), nullptr, x.numel(), row, 1);
  return y;
}

/// Calls fn(begin, end) over [0, n), divided for at::get_num_threads() threads with at least
/// `grain` elements each.
template <class Fn>
void parallel(std::int64_t n, std::int64_t grain, const Fn& fn) {
  at::parallel_for(0, n, grain < 1 ? 1 : grain, fn);
}

}  // namespace tessera::ops::cpu
