// SPDX-License-Identifier: Apache-2.0
// Products of a few rows, in every type that a matrix may have, against sums in float64.
#include "tessera/ops/int8_rows.h"

#include <limits>
#include <tuple>

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/cpu/few_rows.h"

namespace tessera::ops {
namespace {

/// A sum of up to 400 products in any order, in units of its largest result.
constexpr double kFloatSums = 2e-6;

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble);
}

class FewRows : public testing::TestWithParam<std::tuple<at::ScalarType, std::int64_t>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  std::int64_t N() const { return std::get<1>(GetParam()); }
};

TEST_P(FewRows, AgreeWithFloat64) {
  // Inner sizes below, at and beyond a stride of 16; numbers of outputs that no tile divides.
  for (const std::int64_t I : {1, 15, 16, 83, 400}) {
    for (const std::int64_t O : {1, 3, 77}) {
      const at::Tensor x = random({N(), I}, 1, dtype()), weight = random({O, I}, 2, dtype());
      const at::Tensor bias = random({O}, 3, dtype()), scales = random({O}, 4);
      const at::Tensor sums = at::mm(wide(x), wide(weight).t());

      expect_close(cpu::few_rows_linear(x, weight, {}, {}, at::kFloat), doubles(sums), kFloatSums);
      expect_close(cpu::few_rows_linear(x, weight, scales, bias, at::kFloat),
                   doubles(sums * wide(scales) + wide(bias)),
                   kFloatSums);
      for (const at::ScalarType out : {at::kBFloat16, at::kHalf}) {
        EXPECT_TRUE(same_bits(cpu::few_rows_linear(x, weight, {}, bias, out),
                              cpu::few_rows_linear(x, weight, {}, bias, at::kFloat).to(out)));
      }
    }
  }
}

TEST_P(FewRows, HaveTheSameBitsAloneAndTogetherAndForAnyNumberOfThreads) {
  const at::Tensor x = random({N(), 133}, 1, dtype()), weight = random({1031, 133}, 2, dtype());

  const auto results =
      with_threads([&] { return cpu::few_rows_linear(x, weight, {}, {}, at::kFloat); });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
  for (std::int64_t row = 0; row < N(); ++row) {
    const at::Tensor alone = cpu::few_rows_linear(x.narrow(0, row, 1), weight, {}, {}, at::kFloat);
    EXPECT_TRUE(same_bits(alone, results[0].narrow(0, row, 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         FewRows,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(1, 2, 4, 7, 8)));

TEST(FewRowsFit, IsDecidedByShapesAndTypes) {
  const at::Tensor weight = random({5, 16}, 1);

  EXPECT_FALSE(cpu::few_rows_fit(random({9, 16}, 1), weight)) << "nine rows are not few";
  EXPECT_FALSE(cpu::few_rows_fit(random({1, 5}, 1), weight.t())) << "rows with gaps";
  EXPECT_FALSE(cpu::few_rows_fit(at::empty({0, 16}), weight));
  EXPECT_FALSE(cpu::few_rows_fit(at::ones({1, 16}, at::kDouble), at::ones({5, 16}, at::kDouble)));
}

TEST(Int8Rows, AreOffByHalfAScaleAtMost) {
  const at::Tensor weight = random({70, 33}, 1) * random({70, 1}, 2);

  const Int8Rows narrow = to_int8(weight);

  EXPECT_EQ(narrow.rows_OI.scalar_type(), at::kChar);
  const at::Tensor scales = wide(narrow.scales_O).unsqueeze(1);
  // Scales and quotients are themselves rounded to fp32.
  const at::Tensor error = (wide(narrow.rows_OI) * scales - wide(weight)).abs();
  EXPECT_TRUE((error <= scales * 0.5001).all().item<bool>());
  EXPECT_TRUE((narrow.rows_OI.abs().amax(1) == 127).all().item<bool>()) << "all bits are used";
  const at::Tensor products = narrow.rows_OI.to(at::kFloat) * narrow.scales_O.unsqueeze(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_TRUE(at::equal(from_int8(narrow, dtype), products.to(dtype))) << dtype;
}

TEST(Int8Rows, OfZerosAreZeros) {
  const Int8Rows narrow = to_int8(at::zeros({2, 3}));

  EXPECT_TRUE((narrow.rows_OI == 0).all().item<bool>());
  EXPECT_TRUE((from_int8(narrow, at::kFloat) == 0).all().item<bool>());
}

TEST(Int8Rows, AreRefusedForWhatIsNotFinite) {
  at::Tensor weight = at::ones({2, 3});
  weight[1][1] = std::numeric_limits<float>::infinity();

  EXPECT_THROW(to_int8(weight), Error);
  weight[1][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(to_int8(weight), Error);
}

TEST(Int8Rows, MultiplyFewRowsAndMany) {
  const Int8Rows narrow = to_int8(random({77, 200}, 1));
  const at::Tensor matrix = wide(narrow.rows_OI) * wide(narrow.scales_O).unsqueeze(1);
  const at::Tensor bias = random({77}, 2);
  for (const std::int64_t N : {1, 3, 8, 20}) {
    const at::Tensor x = random({N, 200}, 3), x16 = random({N, 200}, 3, at::kBFloat16);

    expect_close(
        linear_int8(x, narrow, bias), doubles(at::mm(wide(x), matrix.t()) + wide(bias)), 2e-6);
    const at::Tensor y = linear_int8(x16, narrow, bias);

    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    // If the kernel for few rows does not compute it, the matrix is rounded to bf16 as well: an
    // error of random sign in each term.
    const bool few = cpu::few_rows_fit(x16, narrow.rows_OI);
    const double rounded = few ? epsilon(at::kBFloat16) : 2 * epsilon(at::kBFloat16);
    expect_close(y, doubles(at::mm(wide(x16), matrix.t()) + wide(bias)), rounded);
  }
}

TEST(Int8Rows, GiveRowsById) {
  const Int8Rows table = to_int8(random({9, 20}, 1));

  const at::Tensor rows = embedding_int8(table, int64s({8, 0, 8}), at::kFloat);

  EXPECT_TRUE(same_bits(rows, from_int8(table, at::kFloat).index_select(0, int64s({8, 0, 8}))));
  EXPECT_THROW(embedding_int8(table, int64s({9}), at::kFloat), Error);
}

}  // namespace
}  // namespace tessera::ops
