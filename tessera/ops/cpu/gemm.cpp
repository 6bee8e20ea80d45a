// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/gemm.h"

#include "tessera/base/error.h"

// libtorch exports the MKL it was linked with, without its header. Weak: another libtorch may not.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout,
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

namespace tessera::ops::cpu {
namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

const std::uint16_t* bits(const at::Tensor& x) {
  return static_cast<const std::uint16_t*>(x.data_ptr());
}

}  // namespace

bool has_bf16_gemm() {
  return cblas_gemm_bf16bf16f32 != nullptr;
}

void bf16_gemm(const at::Tensor& a,
               bool transpose_a,
               const at::Tensor& b,
               bool transpose_b,
               const at::Tensor& c_MN,
               bool accumulate) {
  TESSERA_ASSERT(a.is_contiguous() && b.is_contiguous() && c_MN.is_contiguous());
  TESSERA_ASSERT(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16);
  const std::int64_t inner = a.size(transpose_a ? 0 : 1);
  cblas_gemm_bf16bf16f32(kRowMajor,
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
