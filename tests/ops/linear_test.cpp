// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

// fp32: the sum of up to 200 products in any order. 16 bits: the same sum, rounded once on the way
// out.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : epsilon(dtype);
}

/// a [n, k] times b [m, k] transposed, plus c [m].
std::vector<double> product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c = {}) {
  const std::vector<double> x = doubles(a), w = doubles(b);
  const std::vector<double> bias = c.defined() ? doubles(c) : std::vector<double>();
  const std::size_t n = a.size(0), m = b.size(0), k = a.size(1);
  std::vector<double> y(n * m);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < m; ++j) {
      double sum = bias.empty() ? 0.0 : bias[j];
      for (std::size_t l = 0; l < k; ++l)
        sum += x[i * k + l] * w[j * k + l];
      y[i * m + j] = sum;
    }
  }
  return y;
}

class LinearShapes
    : public testing::TestWithParam<std::tuple<at::ScalarType, std::vector<std::int64_t>>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  std::int64_t N() const { return std::get<1>(GetParam())[0]; }
  std::int64_t I() const { return std::get<1>(GetParam())[1]; }
  std::int64_t O() const { return std::get<1>(GetParam())[2]; }
  at::Tensor x() const { return random({N(), I()}, 1, dtype()); }
  at::Tensor weight() const { return random({O(), I()}, 2, dtype()); }
  at::Tensor dy() const { return random({N(), O()}, 3, dtype()); }
};

TEST_P(LinearShapes, ForwardAgreesWithFloat64) {
  const at::Tensor bias = random({O()}, 4, dtype());

  const at::Tensor y = ops::linear(x(), weight(), bias);

  EXPECT_EQ(y.scalar_type(), dtype());
  expect_close(y, product(x(), weight(), bias), tolerance(dtype()));
  expect_close(ops::linear(x(), weight()), product(x(), weight()), tolerance(dtype()));
}

TEST_P(LinearShapes, OutputIsFloatWhereAskedFor) {
  const at::Tensor y = ops::linear(x(), weight(), {}, at::kFloat);

  EXPECT_EQ(y.scalar_type(), at::kFloat);
  expect_close(y, product(x(), weight()), tolerance(at::kFloat));
}

TEST_P(LinearShapes, InputGradientAgreesWithFloat64) {
  const at::Tensor dx = linear_input_grad(dy(), weight());

  EXPECT_EQ(dx.scalar_type(), dtype());
  expect_close(dx, product(dy(), weight().t().contiguous()), tolerance(dtype()));
}

TEST_P(LinearShapes, WeightGradientIsWrittenThenAddedInFloat) {
  const at::Tensor dw = at::full({O(), I()}, 7.0, at::kFloat);
  std::vector<double> expected = product(dy().t().contiguous(), x().t().contiguous());

  linear_weight_grad(dy(), x(), dw, false);
  expect_close(dw, expected, tolerance(at::kFloat));
  linear_weight_grad(dy(), x(), dw, true);

  for (double& value : expected)
    value *= 2.0;
  expect_close(dw, expected, tolerance(at::kFloat));
}

TEST_P(LinearShapes, BiasGradientIsTheColumnSum) {
  const at::Tensor db = at::full({O()}, 7.0, at::kFloat);
  std::vector<double> expected(static_cast<std::size_t>(O()));
  const std::vector<double> gradient = doubles(dy());
  for (std::size_t i = 0; i < gradient.size(); ++i)
    expected[i % expected.size()] += gradient[i];

  linear_bias_grad(dy(), db, false);
  expect_close(db, expected, tolerance(at::kFloat));
  linear_bias_grad(dy(), db, true);

  for (double& value : expected)
    value *= 2.0;
  expect_close(db, expected, tolerance(at::kFloat));
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         LinearShapes,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(std::vector<std::int64_t>{1, 1, 1},
                                                          std::vector<std::int64_t>{1, 33, 7},
                                                          std::vector<std::int64_t>{37, 64, 129},
                                                          std::vector<std::int64_t>{200, 19, 48},
                                                          std::vector<std::int64_t>{3, 5, 4500})));

// Large products are computed differently if they have many rows or many terms.
class LinearManyRows : public testing::TestWithParam<std::vector<std::int64_t>> {
 protected:
  static at::Tensor bf16(std::int64_t rows, std::int64_t columns, int seed) {
    return random({rows, columns}, seed, at::kBFloat16);
  }
  // Tolerance for some thousand terms added in fp32, relative to the largest sum.
  static constexpr double kFloatSums = 5e-6;
};

TEST_P(LinearManyRows, AgreeWithFloat64InBf16) {
  const std::int64_t N = GetParam()[0], I = GetParam()[1], O = GetParam()[2];
  const at::Tensor x = bf16(N, I, 1), weight = bf16(O, I, 2), dy = bf16(N, O, 3);
  const at::Tensor bias = random({O}, 4, at::kBFloat16), before = random({O, I}, 5);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor y = at::mm(wide(x), wide(weight).t());
  const at::Tensor dw = at::mm(wide(dy).t(), wide(x));

  expect_close(ops::linear(x, weight), doubles(y), epsilon(at::kBFloat16));
  expect_close(ops::linear(x, weight, bias), doubles(y + wide(bias)), epsilon(at::kBFloat16));
  expect_close(ops::linear(x, weight, bias, at::kFloat), doubles(y + wide(bias)), kFloatSums);
  expect_close(linear_input_grad(dy, weight),
               doubles(at::mm(wide(dy), wide(weight))),
               epsilon(at::kBFloat16));
  const at::Tensor out = before.clone();
  linear_weight_grad(dy, x, out, true, 0.25F);
  expect_close(out, doubles(wide(before) + 0.25 * dw), kFloatSums);
  linear_weight_grad(dy, x, out, false);
  expect_close(out, doubles(dw), kFloatSums);
}

TEST_P(LinearManyRows, HaveTheSameBitsAgain) {
  const std::int64_t N = GetParam()[0], I = GetParam()[1], O = GetParam()[2];
  const at::Tensor x = bf16(N, I, 1), weight = bf16(O, I, 2), dy = bf16(N, O, 3);
  const auto all = [&] {
    const at::Tensor dw = at::empty({O, I}, at::kFloat);
    linear_weight_grad(dy, x, dw, false);
    return std::vector<at::Tensor>{ops::linear(x, weight), linear_input_grad(dy, weight), dw};
  };

  const auto first = all(), again = all();

  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(same_bits(first[i], again[i])) << "product " << i;
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         LinearManyRows,
                         testing::Values(std::vector<std::int64_t>{768, 40, 72},
                                         std::vector<std::int64_t>{1030, 65, 131},
                                         std::vector<std::int64_t>{770, 3075, 33},
                                         std::vector<std::int64_t>{770, 33, 3075}));

TEST(Linear, KeepsLeadingDimensions) {
  const at::Tensor x = random({3, 5, 8}, 1), weight = random({6, 8}, 2);

  EXPECT_EQ(ops::linear(x, weight).sizes(), at::IntArrayRef({3, 5, 6}));
  EXPECT_EQ(linear_input_grad(random({3, 5, 6}, 3), weight).sizes(), at::IntArrayRef({3, 5, 8}));
}

TEST(Linear, BiasGradientHasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor dy = random({517, 133}, 5);

  const auto results = with_threads([&] {
    const at::Tensor db = at::empty({133}, at::kFloat);
    linear_bias_grad(dy, db, false);
    return db;
  });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

// Sums that a 16-bit accumulator would lose: one above 2048 takes no more ones, one above 65504
// is infinite.
class LinearSums : public testing::TestWithParam<std::int64_t> {
 protected:
  static constexpr std::int64_t kTerms = 4096;
  at::Tensor rows(double value) const { return at::full({GetParam(), kTerms}, value, at::kHalf); }
};

TEST_P(LinearSums, OfFp16AreMadeInFp32) {
  const at::Tensor ones = rows(1.0);

  EXPECT_TRUE((ops::linear(ones, ones) == kTerms).all().item<bool>());
  EXPECT_TRUE((ops::linear(ones, ones, {}, at::kFloat) == kTerms).all().item<bool>());
  EXPECT_TRUE((linear_input_grad(ones, ones.t().contiguous()) == kTerms).all().item<bool>());
}

TEST_P(LinearSums, MayLeaveFp16AndComeBack) {
  at::Tensor up_and_down = rows(300.0);
  up_and_down.slice(1, kTerms / 2, kTerms).neg_();
  const at::Tensor x = rows(300.0);

  EXPECT_TRUE((ops::linear(x, up_and_down) == 0).all().item<bool>());
  EXPECT_TRUE((ops::linear(x, up_and_down, {}, at::kFloat) == 0).all().item<bool>());
  EXPECT_TRUE((linear_input_grad(x, up_and_down.t().contiguous()) == 0).all().item<bool>());
}

TEST_P(LinearSums, ThatDoNotFitIntoFp16AreInfinite) {
  const at::Tensor x = rows(4.5), dw = at::empty({kTerms, kTerms}, at::kFloat);

  linear_weight_grad(rows(60000.0), x, dw, false);

  EXPECT_TRUE(at::isinf(ops::linear(x, x)).all().item<bool>());
  EXPECT_TRUE(at::isinf(linear_input_grad(x, x.t().contiguous())).all().item<bool>());
  EXPECT_TRUE((ops::linear(x, x, {}, at::kFloat) == 20.25 * kTerms).all().item<bool>());
  EXPECT_TRUE((dw == 270000.0 * GetParam()).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Rows, LinearSums, testing::Values(1, 3, 40));

TEST(Linear, WorksOnMeta) {
  const at::Tensor x =
      at::empty({4, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor weight = at::empty({6, 8}, x.options());

  const at::Tensor y = ops::linear(x, weight, {}, at::kFloat);
  linear_weight_grad(at::empty({4, 6}, x.options()), x, at::empty({6, 8}, y.options()), true);
  linear_bias_grad(at::empty({4, 6}, x.options()), at::empty({6}, y.options()), true);

  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 6}));
  EXPECT_EQ(linear_input_grad(at::empty({4, 6}, x.options()), weight).sizes(), x.sizes());
}

TEST(Linear, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(ops::linear(random({2, 3}, 1), random({4, 5}, 2)), Error);
  EXPECT_THROW(ops::linear(random({2, 3}, 1), random({4, 3}, 2, at::kBFloat16)), Error);
}

}  // namespace
}  // namespace tessera::ops
