// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/gemm.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"

// libtorch exports the MKL it was linked with, without its header. Weak: another libtorch may not.
using MklGemm = void(int layout,
                     int transpose_a,
                     int transpose_b,
                     int m,
                     int n,
                     int k,
                     float alpha,
                     const std::uint16_t* a,
                     int lda,
                     const std::uint16_t* b,
                     int ldb,
                     float beta,
                     float* c,
                     int ldc);
extern "C" {
__attribute__((weak)) MklGemm cblas_gemm_bf16bf16f32;
__attribute__((weak)) MklGemm cblas_gemm_f16f16f32;
// BLAS's own: matrices in columns.
__attribute__((weak)) void sgemm_(const char* transpose_a,
                                  const char* transpose_b,
                                  const int* m,
                                  const int* n,
                                  const int* k,
                                  const float* alpha,
                                  const float* a,
                                  const int* lda,
                                  const float* b,
                                  const int* ldb,
                                  const float* beta,
                                  float* c,
                                  const int* ldc);
}

namespace tessera::ops::cpu {
namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

MklGemm* gemm_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cblas_gemm_bf16bf16f32;
  return dtype == at::kHalf ? cblas_gemm_f16f16f32 : nullptr;
}

at::Tensor matrix_of(const GemmOperand& x, std::int64_t rows, std::int64_t columns) {
  auto* data = const_cast<void*>(x.data);
  if (x.transposed) return at::from_blob(data, {rows, columns}, {1, x.stride}, at::kFloat);
  return at::from_blob(data, {rows, columns}, {x.stride, 1}, at::kFloat);
}

/// By whatever this libtorch was linked with.
void gemm_of_aten(std::int64_t m,
                  std::int64_t n,
                  std::int64_t k,
                  const GemmOperand& a,
                  const GemmOperand& b,
                  float* c,
                  std::int64_t c_stride,
                  bool accumulate,
                  float scale) {
  matrix_of({c, c_stride}, m, n)
      .addmm_(matrix_of(a, m, k), matrix_of(b, k, n), accumulate ? 1.0 : 0.0, scale);
}

/// In rows c = a b is, in columns, c = b a.
void gemm_of_fp32(std::int64_t m,
                  std::int64_t n,
                  std::int64_t k,
                  const GemmOperand& a,
                  const GemmOperand& b,
                  float* c,
                  std::int64_t c_stride,
                  bool accumulate,
                  float scale) {
  if (sgemm_ == nullptr) return gemm_of_aten(m, n, k, a, b, c, c_stride, accumulate, scale);
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
  const int a_stride = static_cast<int>(a.stride), b_stride = static_cast<int>(b.stride),
            stride = static_cast<int>(c_stride);
  const float old = accumulate ? 1.0F : 0.0F;
  sgemm_(b.transposed ? "T" : "N",
         a.transposed ? "T" : "N",
         &columns,
         &rows,
         &inner,
         &scale,
         static_cast<const float*>(b.data),
         &b_stride,
         static_cast<const float*>(a.data),
         &a_stride,
         &old,
         c,
         &stride);
}

}  // namespace

bool has_gemm_to_fp32(at::ScalarType dtype) {
  return dtype == at::kFloat || gemm_of(dtype) != nullptr;
}

void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate,
                  float scale) {
  TESSERA_ASSERT(a.is_contiguous() && b.is_contiguous() && c_MN.is_contiguous());
  TESSERA_ASSERT(a.scalar_type() == b.scalar_type() && c_MN.scalar_type() == at::kFloat);
  gemm_to_fp32(a.scalar_type(),
               c_MN.size(0),
               c_MN.size(1),
               a.size(transpose_a ? 0 : 1),
               {a.data_ptr(), a.size(1), transpose_a},
               {b.data_ptr(), b.size(1), transpose_b},
               c_MN.data_ptr<float>(),
               c_MN.size(1),
               accumulate,
               scale);
}

void gemm_to_fp32(at::ScalarType dtype,
                  std::int64_t m,
                  std::int64_t n,
                  std::int64_t k,
                  const GemmOperand& a,
                  const GemmOperand& b,
                  float* c,
                  std::int64_t c_stride,
                  bool accumulate,
                  float scale) {
  if (dtype == at::kFloat) return gemm_of_fp32(m, n, k, a, b, c, c_stride, accumulate, scale);
  MklGemm* gemm = gemm_of(dtype);
  TESSERA_ASSERT(gemm != nullptr);
  gemm(kRowMajor,
       a.transposed ? kTransposed : kPlain,
       b.transposed ? kTransposed : kPlain,
       static_cast<int>(m),
       static_cast<int>(n),
       static_cast<int>(k),
       scale,
       static_cast<const std::uint16_t*>(a.data),
       static_cast<int>(a.stride),
       static_cast<const std::uint16_t*>(b.data),
       static_cast<int>(b.stride),
       accumulate ? 1.0F : 0.0F,
       c,
       static_cast<int>(c_stride));
}

}  // namespace tessera::ops::cpu
