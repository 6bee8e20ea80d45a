// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/gemm.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"

// libtorch exports the MKL it was linked with, but not its header. Weak symbols, because another
// libtorch may not.
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
// Sets the number of threads for the calling thread; 0: the global setting. Returns the previous
// value.
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);
// The BLAS function, with column-major matrices.
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

/// The row-major product c = a b is the column-major product c = b a.
void gemm_by_blas(const Gemm& gemm) {
  const int rows = static_cast<int>(gemm.m), columns = static_cast<int>(gemm.n);
  const int inner = static_cast<int>(gemm.k), stride = static_cast<int>(gemm.c_stride);
  const int a_stride = static_cast<int>(gemm.a.stride), b_stride = static_cast<int>(gemm.b.stride);
  const float old = gemm.accumulate ? 1.0F : 0.0F;
  sgemm_(gemm.b.transposed ? "T" : "N",
         gemm.a.transposed ? "T" : "N",
         &columns,
         &rows,
         &inner,
         &gemm.scale,
         static_cast<const float*>(gemm.b.data),
         &b_stride,
         static_cast<const float*>(gemm.a.data),
         &a_stride,
         &old,
         gemm.c,
         &stride);
}

}  // namespace

bool has_gemm_to_fp32(at::ScalarType dtype) {
  return dtype == at::kFloat || gemm_of(dtype) != nullptr;
}

void gemm_to_fp32(at::ScalarType dtype, const Gemm& gemm) {
  if (dtype == at::kFloat) return sgemm_ == nullptr ? gemm_by_aten(gemm) : gemm_by_blas(gemm);
  MklGemm* mkl = gemm_of(dtype);
  TESSERA_ASSERT(mkl != nullptr);
  mkl(kRowMajor,
      gemm.a.transposed ? kTransposed : kPlain,
      gemm.b.transposed ? kTransposed : kPlain,
      static_cast<int>(gemm.m),
      static_cast<int>(gemm.n),
      static_cast<int>(gemm.k),
      gemm.scale,
      static_cast<const std::uint16_t*>(gemm.a.data),
      static_cast<int>(gemm.a.stride),
      static_cast<const std::uint16_t*>(gemm.b.data),
      static_cast<int>(gemm.b.stride),
      gemm.accumulate ? 1.0F : 0.0F,
      gemm.c,
      static_cast<int>(gemm.c_stride));
}

GemmsOnThisThread::GemmsOnThisThread()
    : before_(MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(1)) {}

GemmsOnThisThread::~GemmsOnThisThread() {
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
}

void gemm_by_aten(const Gemm& gemm) {
  matrix_of({gemm.c, gemm.c_stride}, gemm.m, gemm.n)
      .addmm_(matrix_of(gemm.a, gemm.m, gemm.k),
              matrix_of(gemm.b, gemm.k, gemm.n),
              gemm.accumulate ? 1.0 : 0.0,
              gemm.scale);
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
               {.m = c_MN.size(0),
                .n = c_MN.size(1),
                .k = a.size(transpose_a ? 0 : 1),
                .a = {a.data_ptr(), a.size(1), transpose_a},
                .b = {b.data_ptr(), b.size(1), transpose_b},
                .c = c_MN.data_ptr<float>(),
                .c_stride = c_MN.size(1),
                .accumulate = accumulate,
                .scale = scale});
}

}  // namespace tessera::ops::cpu
