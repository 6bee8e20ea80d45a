// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/activation.h"

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr double kRootHalf = 0.7071067811865475244;

double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu(double x) {
  return 0.5 * x * std::erfc(-x * kRootHalf);
}
double relu(double x) {
  return x > 0.0 ? x : 0.0;
}
double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

double quick_gelu(double x) {
  return x / (1.0 + std::exp(-1.702 * x));
}
double relu2(double x) {
  return x > 0.0 ? x * x : 0.0;
}

double gelu_tanh_slope(double x) {
  const double k = std::sqrt(2.0 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3 * 0.044715 * x * x);
}
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x * kRootHalf) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
}
double relu_slope(double x) {
  return x > 0.0 ? 1.0 : 0.0;
}
double silu_slope(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return s + x * s * (1.0 - s);
}

double quick_gelu_slope(double x) {
  const double s = 1.0 / (1.0 + std::exp(-1.702 * x));
  return s + 1.702 * x * s * (1.0 - s);
}
double relu2_slope(double x) {
  return x > 0.0 ? 2.0 * x : 0.0;
}

struct Case {
  const char* name;
  double (*value)(double);
  double (*slope)(double);
};
const Case kCases[] = {{"gelu_tanh", gelu_tanh, gelu_tanh_slope},
                       {"gelu_new", gelu_tanh, gelu_tanh_slope},
                       {"gelu", gelu, gelu_slope},
                       {"relu", relu, relu_slope},
                       {"silu", silu, silu_slope},
                       {"quick_gelu", quick_gelu, quick_gelu_slope},
                       {"relu2", relu2, relu2_slope}};

/// Values from -30 to 30, an odd number of them.
at::Tensor inputs(at::ScalarType dtype) {
  return (random({3, 677}, 1) * 30).to(dtype);
}

class ActivationDtypes : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ActivationDtypes, ValuesAndSlopesAgreeWithFloat64) {
  const at::Tensor x = inputs(GetParam()), dy = random({3, 677}, 2, GetParam());
  const std::vector<double> at = doubles(x), gradient = doubles(dy);
  // Relative to each element that is not tiny: a few fp32 operations, or one rounding to 16 bits.
  const double tolerance = GetParam() == at::kFloat ? 2e-6 : epsilon(GetParam());

  for (const Case& c : kCases) {
    const std::vector<double> y = doubles(activate(x, activation_from_name(c.name)));
    const std::vector<double> dx = doubles(activate_backward(dy, x, activation_from_name(c.name)));

    for (std::size_t i = 0; i < at.size(); ++i) {
      const double value = c.value(at[i]), slope = c.slope(at[i]);
      ASSERT_NEAR(y[i], value, tolerance * (std::abs(value) + 0.02))
          << c.name << "(" << at[i] << ")";
      ASSERT_NEAR(dx[i], slope * gradient[i], tolerance * (std::abs(slope) + 1.0))
          << c.name << "'(" << at[i] << ")";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         ActivationDtypes,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(ActivationKernel, AnElementDoesNotDependOnItsPlace) {
  const at::Tensor x = inputs(at::kFloat).view({-1});

  for (const Case& c : kCases) {
    const Activation activation = activation_from_name(c.name);
    const at::Tensor all = activate(x, activation);
    for (const std::int64_t first : {1, 5, 17}) {
      const at::Tensor part = activate(x.slice(0, first, first + 21), activation);
      EXPECT_TRUE(same_bits(all.slice(0, first, first + 21), part)) << c.name;
    }
  }
}

TEST(ActivationKernel, NanStaysNanAndInfinityIsHandled) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({std::nanf(""), inf}, at::kFloat);

  for (const Case& c : kCases) {
    const at::Tensor y = activate(x, activation_from_name(c.name));
    EXPECT_TRUE(std::isnan(y[0].item<float>())) << c.name;
    EXPECT_EQ(y[1].item<float>(), inf) << c.name;
  }
}

// Far from zero a gate is 0 or 1, even if the square or cube of its input is very large.
TEST(ActivationKernel, IsItselfOrNothingFarFromZero) {
  const at::Tensor far = at::tensor({1e3, 1e8, 1e13, 2e13, 1e25, 3e38}, at::kFloat);
  const at::Tensor ones = at::ones_like(far), none = at::zeros_like(far);

  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor right = far.to(dtype), left = -right, dy = ones.to(dtype);
    for (const Case& c : kCases) {
      const Activation activation = activation_from_name(c.name);
      if (activation == Activation::SquaredRelu) continue;
      EXPECT_TRUE(at::equal(activate(right, activation), right)) << c.name;
      EXPECT_TRUE(at::equal(activate(left, activation), none.to(dtype))) << c.name;
      EXPECT_TRUE(at::equal(activate_backward(dy, right, activation), dy)) << c.name;
      EXPECT_LT(activate_backward(dy, left, activation).abs().max().item<double>(), 1e-30)
          << c.name;
    }
  }
}

TEST(ActivationKernel, WhatDoesNotFitIntoFp16IsInfinite) {
  const at::Tensor ten = at::full({1, 37}, 10.0, at::kHalf);
  const at::Tensor largest = at::full({1, 37}, 65504.0, at::kHalf);

  const at::Tensor fits = activate_backward(largest, ten, Activation::Relu);
  // Silu's slope at 10 is 1.0004, and from 65520 on nothing fits.
  const at::Tensor passes = activate_backward(largest, ten, Activation::Silu);

  EXPECT_TRUE(same_bits(fits, largest));
  EXPECT_TRUE((passes == std::numeric_limits<double>::infinity()).all().item<bool>());
}

TEST(ActivationKernel, WorksOnMeta) {
  const at::Tensor x =
      at::empty({4, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));

  EXPECT_TRUE(activate(x, Activation::Gelu).is_meta());
  EXPECT_EQ(activate_backward(x, x, Activation::Relu).scalar_type(), at::kBFloat16);
}

TEST(ActivationKernel, UnknownNamesGetTheNearest) {
  try {
    activation_from_name("gelu_tan");
    FAIL() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_NE(error.fix().find("gelu_tanh"), std::string::npos);
  }
}

TEST_P(ActivationDtypes, GatesAgreeWithFloat64) {
  constexpr std::int64_t kRows = 23, kFeatures = 67;
  // Gates from -12 to 12, in fp16 with products that fit.
  const at::Tensor x = (random({kRows, 2 * kFeatures}, 1) * 12).to(GetParam()),
                   dy = random({kRows, kFeatures}, 2, GetParam());
  const std::vector<double> from = doubles(x), gradient = doubles(dy);
  const double tolerance = GetParam() == at::kFloat ? 2e-6 : epsilon(GetParam());

  for (const Case& c : kCases) {
    const Activation activation = activation_from_name(c.name);
    const at::Tensor out = gated(x, activation), back = gated_backward(dy, x, activation);
    const std::vector<double> y = doubles(out), dx = doubles(back);

    EXPECT_EQ(out.scalar_type(), GetParam());
    ASSERT_EQ(back.sizes(), x.sizes());
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t f = 0; f < kFeatures; ++f) {
        const std::size_t at_gate = row * 2 * kFeatures + f, at_up = at_gate + kFeatures,
                          at_y = row * kFeatures + f;
        const double gate = from[at_gate], up = from[at_up], value = c.value(gate),
                     slope = c.slope(gate), g = gradient[at_y];
        // The tolerance of the activation alone, times the factor.
        ASSERT_NEAR(y[at_y], value * up, tolerance * (std::abs(value) + 0.02) * (std::abs(up) + 1))
            << c.name << "(" << gate << ")";
        ASSERT_NEAR(
            dx[at_gate], g * up * slope, tolerance * (std::abs(slope) + 1.0) * (std::abs(up) + 1))
            << c.name << "'(" << gate << ")";
        ASSERT_NEAR(dx[at_up], g * value, tolerance * (std::abs(value) + 0.02))
            << c.name << "(" << gate << ")";
      }
    }
  }
}

TEST(GatedKernel, HasTheSameBitsForAnyNumberOfThreadsAndForARowAlone) {
  const at::Tensor x = random({701, 2 * 33}, 1) * 5, dy = random({701, 33}, 2);

  const auto results = with_threads([&] {
    return at::cat({gated(x, Activation::Silu), gated_backward(dy, x, Activation::Silu)}, 1);
  });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
  const at::Tensor alone = gated(x.narrow(0, 350, 1), Activation::Silu);
  EXPECT_TRUE(same_bits(alone, results[0].narrow(0, 350, 1).narrow(1, 0, 33).contiguous()));
}

TEST(GatedKernel, WorksOnMetaAndRefusesAnOddNumberOfFeatures) {
  const at::Tensor x =
      at::empty({4, 3, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));

  const at::Tensor y = gated(x, Activation::Silu);

  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{4, 3, 4}));
  EXPECT_EQ(gated_backward(y, x, Activation::Silu).sizes(), x.sizes());
  EXPECT_THROW(gated(random({2, 7}, 1), Activation::Silu), Error);
  EXPECT_THROW(gated_backward(random({2, 4}, 1), random({2, 6}, 1), Activation::Silu), Error);
}

}  // namespace
}  // namespace tessera::ops
