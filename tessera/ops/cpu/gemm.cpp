// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/gemm.h"

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
}

namespace tessera::ops::cpu {
namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

MklGemm* gemm_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cblas_gemm_bf16bf16f32;
  return dtype == at::kHalf ? cblas_gemm_f16f16f32 : nullptr;
}

const std::uint16_t* bits(const at::Tensor& x) {
  return static_cast<const std::uint16_t*>(x.data_ptr());
}

}  // namespace

bool has_gemm_to_fp32(at::ScalarType dtype) {
  return gemm_of(dtype) != nullptr;
}

void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate) {
  TESSERA_ASSERT(a.is_contiguous() && b.is_contiguous() && c_MN.is_contiguous());
  TESSERA_ASSERT(a.scalar_type() == b.scalar_type() && c_MN.scalar_type() == at::kFloat);
  MklGemm* gemm = gemm_of(a.scalar_type());
  TESSERA_ASSERT(gemm != nullptr);
  const std::int64_t inner = a.size(transpose_a ? 0 : 1);
  gemm(kRowMajor,
       transpose_a ? kTransposed : kPlain,
       transpose_b ? kTransposed : kPlain,
       static_cast<int>(c_MN.size(0)),
       static_cast<int>(c_MN.size(1)),
       static_cast<int>(inner),
       1.0F,
       bits(a),
       static_cast<int>(a.size(1)),
       bits(b),
       static_cast<int>(b.size(1)),
       accumulate ? 1.0F : 0.0F,
       c_MN.data_ptr<float>(),
       static_cast<int>(c_MN.size(1)));
}

}  // namespace tessera::ops::cpu
