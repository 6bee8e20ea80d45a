// SPDX-License-Identifier: Apache-2.0
// MKL's products of bf16, fp16 and fp32 matrices that are added up, and left, in fp32. ATen has no
// such call for 16 bits on the CPU, and none for parts of a thread's own memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// A matrix in rows, or the transpose of one.
struct GemmOperand {
  const void* data;
  std::int64_t stride;  ///< elements from one row to the next
  bool transposed = false;
};
/// False for other dtypes, and for 16 bits where libtorch came without MKL.
bool has_gemm_to_fp32(at::ScalarType dtype);
/// c_MN = scale * op(a) op(b) + (accumulate ? c_MN : 0). op transposes where asked. a, b:
/// row-major, of one dtype; c: row-major fp32. Requires has_gemm_to_fp32() of that dtype.
void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate,
                  float scale = 1.0F);

/// c = scale * a b + (accumulate ? c : 0) with a [m, k], b [k, n] of `dtype`, c [m, n] fp32 in rows
/// of `c_stride`. On one thread inside of a parallel region.
void gemm_to_fp32(at::ScalarType dtype,
                  std::int64_t m,
                  std::int64_t n,
                  std::int64_t k,
                  const GemmOperand& a,
                  const GemmOperand& b,
                  float* c,
                  std::int64_t c_stride,
                  bool accumulate,
                  float scale = 1.0F);

}  // namespace tessera::ops::cpu
