// SPDX-License-Identifier: Apache-2.0
// oneDNN's products of bf16 or fp32 matrices. libtorch calls its own hidden copy of oneDNN, but
// only for results in bf16.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

struct MatmulOptions {
  at::Tensor bias_N = {};   ///< fp32 or bf16; undefined: none
  bool accumulate = false;  ///< adds to the contents of c
  float scale = 1.0F;       ///< factor of the product
};
/// c_MN = scale * a_MK b_KN + bias_N + (accumulate ? c_MN : 0), accumulated in fp32. a, b: both
/// bf16 or both fp32, with contiguous rows or columns (transposed views are allowed); c: fp32, or
/// bf16 if a and b are, with contiguous rows. The same shapes, strides and threads give the same
/// bits. If a has many rows, b is copied. Can be called from any thread; runs on one thread inside
/// a parallel region. Throws Error{Bug} if oneDNN fails.
void matmul(const at::Tensor& a_MK,
            const at::Tensor& b_KN,
            const at::Tensor& c_MN,
            const MatmulOptions& options = {});
/// Bytes that matmul() allocates with the current number of threads for a product into `out`. The
/// tensors may be on meta. Starts no thread.
std::int64_t matmul_scratch(const at::Tensor& a_MK,
                            const at::Tensor& b_KN,
                            at::ScalarType out,
                            const MatmulOptions& options);

}  // namespace tessera::ops::cpu
