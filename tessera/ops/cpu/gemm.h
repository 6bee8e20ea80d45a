// SPDX-License-Identifier: Apache-2.0
// MKL's products of bf16, fp16 and fp32 matrices with fp32 accumulation and result. ATen has no
// such call for 16-bit types on the CPU, and none for parts of a thread's own memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// A row-major matrix, or the transpose of one.
struct GemmOperand {
  const void* data;
  std::int64_t stride;  ///< elements from one row to the next
  bool transposed = false;
};

/// c = scale * a b + (accumulate ? c : 0), where a [m, k] and b [k, n] have the same dtype and c
/// [m, n] is fp32 with row stride c_stride.
struct Gemm {
  std::int64_t m, n, k;
  GemmOperand a, b;
  float* c;
  std::int64_t c_stride;
  bool accumulate = false;
  float scale = 1.0F;
};

/// False for other dtypes, and for 16-bit types if libtorch was built without MKL.
bool has_gemm_to_fp32(at::ScalarType dtype);

/// Runs on one thread inside a parallel region. Requires has_gemm_to_fp32(dtype).
void gemm_to_fp32(at::ScalarType dtype, const Gemm& gemm);

/// During its lifetime, products of this thread run only on this thread, so that their bits are
/// those of a parallel region.
class GemmsOnThisThread {
 public:
  GemmsOnThisThread();
  ~GemmsOnThisThread();
  GemmsOnThisThread(const GemmsOnThisThread&) = delete;
  GemmsOnThisThread& operator=(const GemmsOnThisThread&) = delete;

 private:
  int before_;
};

/// The same for fp32 with ATen, if libtorch exports no BLAS.
void gemm_by_aten(const Gemm& gemm);

/// c_MN = scale * op(a) op(b) + (accumulate ? c_MN : 0), where op transposes if requested. a, b:
/// row-major, of the same dtype; c: row-major fp32. Requires has_gemm_to_fp32() for that dtype.
void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate,
                  float scale = 1.0F);

}  // namespace tessera::ops::cpu
