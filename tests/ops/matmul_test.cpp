// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/matmul.h"

#include <tuple>

#include "ops/support.h"

#include "tessera/ops/cpu/isa.h"

namespace tessera::ops {
namespace {

struct MatmulCase {
  bool transpose_a, transpose_b;
  at::ScalarType out;
  at::ScalarType in = at::kBFloat16;
};

class Matmul : public testing::TestWithParam<MatmulCase> {
 protected:
  void SetUp() override {
    if (GetParam().in == at::kBFloat16 && !native_bf16())
      GTEST_SKIP() << "this CPU has no products of bf16";
  }
  static at::Tensor operand(std::int64_t rows, std::int64_t columns, bool transpose, int seed) {
    return transpose ? random({columns, rows}, seed, GetParam().in).t()
                     : random({rows, columns}, seed, GetParam().in);
  }
  // fp32: some hundred products added in fp32. bf16: rounded once.
  static double tolerance() { return GetParam().out == at::kFloat ? 1e-5 : 5e-3; }
};

TEST_P(Matmul, AgreesWithFloat64WithBiasScaleAndAccumulation) {
  const at::Tensor a = operand(37, 190, GetParam().transpose_a, 1);
  const at::Tensor b = operand(190, 50, GetParam().transpose_b, 2);
  const at::Tensor bias = random({50}, 3, at::kFloat);
  const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const at::Tensor c = at::full({37, 50}, 9.0, GetParam().out);

  cpu::matmul(a, b, c);
  expect_close(c, doubles(product), tolerance());
  cpu::matmul(a, b, c, {.bias_N = bias});
  expect_close(c, doubles(product + bias), tolerance());
  const at::Tensor before = c.to(at::kDouble);
  cpu::matmul(a, b, c, {.accumulate = true, .scale = 0.25F});
  expect_close(c, doubles(before + product * 0.25), tolerance());
}

// So many rows (or terms, if `a` is stored by columns) that b is reordered first; so many terms
// that the sums are computed in parts.
TEST_P(Matmul, OfManyRowsOrTermsAgreesWithFloat64) {
  for (const auto& [rows, terms, columns] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{2050, 67, 50},
        {800, 790, 20},
        {3, 40000, 5}}) {
    SCOPED_TRACE(testing::Message() << rows << " " << terms);
    const at::Tensor a = operand(rows, terms, GetParam().transpose_a, 1);
    const at::Tensor b = operand(terms, columns, GetParam().transpose_b, 2);
    const at::Tensor bias = random({columns}, 3, at::kFloat);
    const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const at::Tensor c = at::full({rows, columns}, 9.0, GetParam().out);

    cpu::matmul(a, b, c, {.bias_N = bias});
    expect_close(c, doubles(product + bias), tolerance());
    const at::Tensor before = c.to(at::kDouble);
    cpu::matmul(a, b, c, {.accumulate = true, .scale = 0.25F});
    expect_close(c, doubles(before + product * 0.25), tolerance());
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         Matmul,
                         testing::Values(MatmulCase{false, false, at::kFloat},
                                         MatmulCase{true, false, at::kFloat},
                                         MatmulCase{false, true, at::kFloat},
                                         MatmulCase{true, true, at::kFloat},
                                         MatmulCase{false, false, at::kFloat, at::kFloat},
                                         MatmulCase{true, false, at::kFloat, at::kFloat},
                                         MatmulCase{false, true, at::kFloat, at::kFloat},
                                         MatmulCase{true, true, at::kFloat, at::kFloat},
                                         MatmulCase{false, true, at::kBFloat16},
                                         MatmulCase{true, false, at::kBFloat16}));

// One row, one column, nothing to add up, and rows of a wider matrix.
TEST(MatmulEdges, AgreeWithFloat64) {
  if (!native_bf16()) GTEST_SKIP() << "this CPU has no products of bf16";
  for (const auto& [m, k, n] :
       {std::tuple(1, 7, 5), {5, 7, 1}, {3, 1, 4}, {1, 1, 1}, {64, 33, 1}}) {
    const at::Tensor a = random({m, k + 3}, 1, at::kBFloat16).narrow(1, 2, k);
    const at::Tensor b = random({k, n}, 2, at::kBFloat16);
    const at::Tensor c = at::empty({m, n}, at::kFloat);

    cpu::matmul(a, b, c);

    expect_close(c, doubles(at::mm(a.to(at::kDouble), b.to(at::kDouble))), 1e-6);
  }
  const at::Tensor c = at::ones({2, 3}, at::kFloat);
  cpu::matmul(at::empty({2, 0}, at::kBFloat16), at::empty({0, 3}, at::kBFloat16), c);
  expect_close(c, doubles(at::zeros({2, 3})), 0);
}

}  // namespace
}  // namespace tessera::ops
