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

TEST(GemmToFp32, ByAtenAgreesWithFloat64OnPartsOfMatrices) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      // Every operand is the upper left corner of a larger matrix.
      const at::Tensor a = random({40, 40}, 1), b = random({40, 40}, 2);
      const auto corner = [](const at::Tensor& x, bool transposed, std::int64_t m, std::int64_t n) {
        const at::Tensor wide = x.to(at::kDouble);
        return (transposed ? wide.t() : wide).slice(0, 0, m).slice(1, 0, n);
      };
      const at::Tensor product = corner(a, transpose_a, 33, 19).mm(corner(b, transpose_b, 19, 30));
      for (const bool accumulate : {false, true}) {
        at::Tensor c = at::full({40, 40}, 9.0, at::kFloat);
        at::Tensor expected = c.to(at::kDouble);
        expected.slice(0, 0, 33).slice(1, 0, 30).mul_(accumulate ? 1.0 : 0.0).add_(product, 0.5);

        cpu::gemm_by_aten({.m = 33,
                           .n = 30,
                           .k = 19,
                           .a = {a.data_ptr(), 40, transpose_a},
                           .b = {b.data_ptr(), 40, transpose_b},
                           .c = c.data_ptr<float>(),
                           .c_stride = 40,
                           .accumulate = accumulate,
                           .scale = 0.5F});

        expect_close(c, doubles(expected), 1e-6);
      }
    }
  }
}

TEST(GemmToFp32, KnowsNoOtherDtype) {
  EXPECT_FALSE(cpu::has_gemm_to_fp32(at::kDouble));
}

}  // namespace
}  // namespace tessera::ops
