// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/gemm.h"

#include "ops/support.h"

namespace tessera::ops {
namespace {

class GemmToFp32 : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GemmToFp32, AgreesWithAFloatProductInEveryTransposition) {
  if (!cpu::has_gemm_to_fp32(GetParam())) GTEST_SKIP() << "this libtorch has no MKL";
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const at::Tensor a =
          random(transpose_a ? at::IntArrayRef{19, 33} : at::IntArrayRef{33, 19}, 1, GetParam());
      const at::Tensor b =
          random(transpose_b ? at::IntArrayRef{50, 19} : at::IntArrayRef{19, 50}, 2, GetParam());
      const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
      const at::Tensor expected =
          at::mm(transpose_a ? wide_a.t() : wide_a, transpose_b ? wide_b.t() : wide_b);
      const at::Tensor c = at::full({33, 50}, 9.0, at::kFloat);

      cpu::gemm_to_fp32(a, transpose_a, b, transpose_b, c, false);
      expect_close(c, doubles(expected), 1e-6);  // 19 products added in fp32
      cpu::gemm_to_fp32(a, transpose_a, b, transpose_b, c, true);

      expect_close(c, doubles(expected * 2), 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GemmToFp32, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(GemmToFp32, KnowsNoOtherDtype) {
  EXPECT_FALSE(cpu::has_gemm_to_fp32(at::kDouble));
}

}  // namespace
}  // namespace tessera::ops
