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

/// c = scale * a b + (accumulate ? c : 0), where a [m, k] and b [k, n] have one dtype and c [m, n]
/// is fp32 in rows of c_stride.
struct Gemm {
  std::int64_t m, n, k;
  GemmOperand a, b;
  float* c;
  std::int64_t c_stride;
  bool accumulate = false;
  float scale = 1.0F;
};

/// False for other dtypes, and for 16 bits where libtorch came without MKL.
bool has_gemm_to_fp32(at::ScalarType dtype);

/// On one thread inside of a parallel region. Requires has_gemm_to_fp32(dtype).
void gemm_to_fp32(at::ScalarType dtype, const Gemm& gemm);

/// While it lives, products of this thread are made on it alone, so that their bits are those of a
/// parallel region.
class GemmsOnThisThread {
 public:
  GemmsOnThisThread();
  ~GemmsOnThisThread();
  GemmsOnThisThread(const GemmsOnThisThread&) = delete;
  GemmsOnThisThread& operator=(const GemmsOnThisThread&) = delete;

 private:
  int before_;
};

/// The same of fp32 by ATen, where libtorch shows no BLAS.
void gemm_by_aten(const Gemm& gemm);

/// c_MN = scale * op(a) op(b) + (accumulate ? c_MN : 0). op transposes where asked. a, b:
/// row-major, of one dtype; c: row-major fp32. Requires has_gemm_to_fp32() of that dtype.
void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate,
                  float scale = 1.0F);

}  // namespace tessera::ops::cpu
