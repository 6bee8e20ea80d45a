// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr double kEps = 1e-5;
// fp32 sums of at most 1,000 terms in 16 lanes; 16 bits add the rounding of the result.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : epsilon(dtype);
}

struct Reference {
  std::vector<double> y, dx, dweight, dbias;
};

Reference reference(const at::Tensor& x_NC,
                    const at::Tensor& w_C,
                    const at::Tensor& b_C,
                    const at::Tensor& dy_NC) {
  const std::vector<double> x = doubles(x_NC), w = doubles(w_C), b = doubles(b_C),
                            dy = doubles(dy_NC);
  const std::size_t C = w.size(), N = x.size() / C;
  Reference out{std::vector<double>(x.size()),
                std::vector<double>(x.size()),
                std::vector<double>(C),
                std::vector<double>(C)};
  for (std::size_t row = 0; row < N; ++row) {
    const double* xr = &x[row * C];
    const double* gr = &dy[row * C];
    double mean = 0.0, variance = 0.0;
    for (std::size_t c = 0; c < C; ++c)
      mean += xr[c] / C;
    for (std::size_t c = 0; c < C; ++c)
      variance += (xr[c] - mean) * (xr[c] - mean) / C;
    const double rstd = 1.0 / std::sqrt(variance + kEps);
    double mean_g = 0.0, mean_gn = 0.0;
    for (std::size_t c = 0; c < C; ++c) {
      const double normal = (xr[c] - mean) * rstd;
      out.y[row * C + c] = normal * w[c] + b[c];
      mean_g += gr[c] * w[c] / C;
      mean_gn += gr[c] * w[c] * normal / C;
      out.dweight[c] += gr[c] * normal;
      out.dbias[c] += gr[c];
    }
    for (std::size_t c = 0; c < C; ++c) {
      out.dx[row * C + c] = rstd * (gr[c] * w[c] - mean_g - (xr[c] - mean) * rstd * mean_gn);
    }
  }
  return out;
}

class NormShapes
    : public testing::TestWithParam<std::tuple<at::ScalarType, std::int64_t, std::int64_t>> {};

TEST_P(NormShapes, ForwardAndGradientsAgreeWithFloat64) {
  const auto [dtype, N, C] = GetParam();
  const at::Tensor x = (random({N, C}, 1) * 3 + 1).to(dtype), weight = random({C}, 2, dtype);
  const at::Tensor bias = random({C}, 3, dtype), dy = random({N, C}, 4, dtype);
  const Reference expected = reference(x, weight, bias, dy);

  const LayerNormOut out = layer_norm(x, weight, bias, kEps);
  const at::Tensor dweight = at::full({C}, 5.0, at::kFloat), dbias = at::full({C}, 5.0, at::kFloat);
  const at::Tensor dx =
      layer_norm_backward(dy, x, out.mean_N, out.rstd_N, weight, dweight, false, dbias, false);

  EXPECT_EQ(out.y_NC.scalar_type(), dtype);
  EXPECT_EQ(dx.scalar_type(), dtype);
  expect_close(out.y_NC, expected.y, tolerance(dtype));
  // With one or two channels the gradient is a difference of almost equal numbers, scaled by up to
  // 1/sqrt(eps).
  if (C > 2) expect_close(dx, expected.dx, 4 * tolerance(dtype));
  expect_close(dweight, expected.dweight, 4e-6);
  expect_close(dbias, expected.dbias, 4e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         NormShapes,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(1, 3, 70),
                                          testing::Values(1, 7, 16, 65, 768)));

struct Gradients {
  at::Tensor dx, dweight, dbias;
};

Gradients gradients(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& weight) {
  const LayerNormOut out = layer_norm(x, weight, weight, kEps);
  const at::Tensor dweight = at::empty({x.size(1)}, at::kFloat), dbias = at::empty_like(dweight);
  const at::Tensor dx =
      layer_norm_backward(dy, x, out.mean_N, out.rstd_N, weight, dweight, false, dbias, false);
  return {dx, dweight, dbias};
}

TEST(LayerNorm, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = random({301, 96}, 1), dy = random({301, 96}, 2), weight = random({96}, 3);

  const auto results = with_threads([&] { return gradients(x, dy, weight); });

  for (const Gradients& other : results) {
    EXPECT_TRUE(same_bits(results[0].dx, other.dx));
    EXPECT_TRUE(same_bits(results[0].dweight, other.dweight));
    EXPECT_TRUE(same_bits(results[0].dbias, other.dbias));
  }
}

TEST(LayerNorm, AddsToItsDestinationsOrSkipsThem) {
  const at::Tensor x = random({40, 24}, 1), dy = random({40, 24}, 2), weight = random({24}, 3);
  const Gradients once = gradients(x, dy, weight);
  const LayerNormOut out = layer_norm(x, weight, weight, kEps);
  const at::Tensor dweight = once.dweight.clone();

  const at::Tensor dx =
      layer_norm_backward(dy, x, out.mean_N, out.rstd_N, weight, dweight, true, {}, false);

  EXPECT_TRUE(same_bits(dx, once.dx));
  EXPECT_TRUE(same_bits(dweight, once.dweight * 2));
}

TEST(LayerNorm, MakesItsWeightsGradientsAloneWithoutAWeight) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random({37, 19}, 1, dtype), dy = random({37, 19}, 2, dtype);
    const LayerNormOut out = layer_norm(x, random({19}, 3), random({19}, 4), kEps);
    const auto sums = [&](const at::Tensor& weight) {
      const at::Tensor both = at::full({2, 19}, 5.0, at::kFloat);
      const at::Tensor dx =
          layer_norm_backward(dy, x, out.mean_N, out.rstd_N, weight, both[0], true, both[1], true);
      EXPECT_EQ(dx.defined(), weight.defined());
      return both;
    };
    EXPECT_TRUE(same_bits(sums(random({19}, 3)), sums({})));
  }
}

TEST(LayerNorm, RowsDoNotDependOnTheirNeighbours) {
  const at::Tensor x = random({9, 50}, 1), weight = random({50}, 2);

  const at::Tensor all = layer_norm(x, weight, weight, kEps).y_NC;
  const at::Tensor one = layer_norm(x.slice(0, 4, 5), weight, weight, kEps).y_NC;

  EXPECT_TRUE(same_bits(all.slice(0, 4, 5), one));
}

TEST(LayerNorm, LargeMeansDoNotSpoilTheVariance) {
  const at::Tensor x = random({2, 512}, 1) + 1000.0, weight = at::ones({512}),
                   bias = at::zeros({512});
  const Reference expected = reference(x, weight, bias, x);

  const at::Tensor y = layer_norm(x, weight, bias, kEps).y_NC;

  // The mean of numbers near 1000 is known to 6e-5 of their spread.
  expect_close(y, expected.y, 2e-4);
}

TEST(LayerNorm, SquaresBeyondFp16AreNotCutButResultsAre) {
  const at::Tensor x = (random({3, 64}, 1) * 60000).to(at::kHalf);
  const at::Tensor ones = at::ones({64}, at::kHalf), zeros = at::zeros({64}, at::kHalf);
  const Reference expected = reference(x, ones, zeros, x);

  const at::Tensor y = layer_norm(x, ones, zeros, kEps).y_NC;
  const std::vector<double> wide = doubles(layer_norm(x, ones * 60000, zeros, kEps).y_NC);

  expect_close(y, expected.y, tolerance(at::kHalf));
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const double size = 60000 * std::abs(expected.y[i]);
    if (std::abs(size - 65520) < 1.0) continue;  // fp32 may round it to either side
    EXPECT_EQ(std::isinf(wide[i]), size > 65520) << size;
  }
}

TEST(LayerNorm, WorksOnMeta) {
  const at::Tensor x =
      at::empty({4, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor weight = at::empty({8}, x.options());

  const LayerNormOut out = layer_norm(x, weight, weight, kEps);
  const at::Tensor dx =
      layer_norm_backward(x, x, out.mean_N, out.rstd_N, weight, {}, false, {}, false);

  EXPECT_EQ(out.y_NC.scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.mean_N.scalar_type(), at::kFloat);
  EXPECT_EQ(dx.sizes(), x.sizes());
  EXPECT_TRUE(dx.is_meta());
}

TEST(LayerNorm, RefusesAWeightOfAnotherSize) {
  EXPECT_THROW(layer_norm(random({2, 3}, 1), random({4}, 2), random({4}, 2), kEps), Error);
}

TEST(LayerNorm, OfASumHasTheBitsOfTheSumsNorm) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t C : {1, 7, 96, 130}) {
      const at::Tensor x = random({33, C}, 1, dtype), branch = random({33, C}, 2, dtype),
                       weight = random({C}, 3, dtype);

      const LayerNormOut out = layer_norm(x, weight, weight, kEps, branch);

      EXPECT_TRUE(same_bits(out.x_NC, x + branch)) << dtype << " " << C;
      EXPECT_TRUE(same_bits(out.y_NC, layer_norm(x + branch, weight, weight, kEps).y_NC));
      const RmsNormOut rms = rms_norm(x, weight, kEps, branch);
      EXPECT_TRUE(same_bits(rms.x_NC, x + branch));
      EXPECT_TRUE(same_bits(rms.y_NC, rms_norm(x + branch, weight, kEps).y_NC));
    }
  }
}

TEST(LayerNorm, AddsToItsInputsGradientBeforeItIsRounded) {
  const at::Tensor x = random({33, 50}, 1), dy = random({33, 50}, 2), plus = random({33, 50}, 3),
                   weight = random({50}, 4);
  const auto dx_of = [&](at::ScalarType dtype, const at::Tensor& with) {
    const at::Tensor narrow = x.to(dtype);
    const LayerNormOut out = layer_norm(narrow, weight, weight, kEps);
    return layer_norm_backward(
        dy.to(dtype), narrow, out.mean_N, out.rstd_N, weight, {}, false, {}, false, with);
  };

  EXPECT_TRUE(same_bits(dx_of(at::kFloat, plus), dx_of(at::kFloat, {}) + plus));
  const at::Tensor narrow = x.to(at::kBFloat16), addend = plus.to(at::kBFloat16);
  const LayerNormOut wide = layer_norm(narrow.to(at::kFloat), weight, weight, kEps);
  const at::Tensor once = layer_norm_backward(dy.to(at::kBFloat16).to(at::kFloat),
                                              narrow.to(at::kFloat),
                                              wide.mean_N,
                                              wide.rstd_N,
                                              weight,
                                              {},
                                              false,
                                              {},
                                              false,
                                              addend.to(at::kFloat));
  EXPECT_TRUE(same_bits(dx_of(at::kBFloat16, addend), once.to(at::kBFloat16)));
}

TEST(LayerNorm, RefusesASumOfTwoShapes) {
  const at::Tensor x = random({2, 3}, 1), weight = random({3}, 2);
  EXPECT_THROW(layer_norm(x, weight, weight, kEps, random({3, 2}, 3)), Error);
  EXPECT_THROW(rms_norm(x, weight, kEps, random({2}, 3)), Error);
}

struct RmsReference {
  std::vector<double> y, dx, dweight;
};

RmsReference rms_reference(const at::Tensor& x_NC, const at::Tensor& w_C, const at::Tensor& dy_NC) {
  const std::vector<double> x = doubles(x_NC), w = doubles(w_C), dy = doubles(dy_NC);
  const std::size_t C = w.size(), N = x.size() / C;
  RmsReference out{
      std::vector<double>(x.size()), std::vector<double>(x.size()), std::vector<double>(C)};
  for (std::size_t row = 0; row < N; ++row) {
    const double* xr = &x[row * C];
    const double* gr = &dy[row * C];
    double square = 0.0, dot = 0.0;
    for (std::size_t c = 0; c < C; ++c)
      square += xr[c] * xr[c] / C;
    const double rstd = 1.0 / std::sqrt(square + kEps);
    for (std::size_t c = 0; c < C; ++c) {
      out.y[row * C + c] = xr[c] * rstd * w[c];
      out.dweight[c] += gr[c] * xr[c] * rstd;
      dot += gr[c] * w[c] * xr[c] / C;
    }
    for (std::size_t c = 0; c < C; ++c)
      out.dx[row * C + c] = rstd * (gr[c] * w[c] - xr[c] * rstd * rstd * dot);
  }
  return out;
}

TEST_P(NormShapes, ByTheMeanSquareAgreesWithFloat64) {
  const auto [dtype, N, C] = GetParam();
  const at::Tensor x = (random({N, C}, 1) * 3 + 1).to(dtype), weight = random({C}, 2, dtype),
                   dy = random({N, C}, 4, dtype);
  const RmsReference expected = rms_reference(x, weight, dy);

  const RmsNormOut out = rms_norm(x, weight, kEps);
  const at::Tensor dweight = at::full({C}, 5.0, at::kFloat);
  const at::Tensor dx = rms_norm_backward(dy, x, out.rstd_N, weight, dweight, false);

  EXPECT_EQ(out.y_NC.scalar_type(), dtype);
  EXPECT_EQ(dx.scalar_type(), dtype);
  expect_close(out.y_NC, expected.y, tolerance(dtype));
  // With one channel the gradient is a difference of almost equal numbers.
  if (C > 2) expect_close(dx, expected.dx, 4 * tolerance(dtype));
  expect_close(dweight, expected.dweight, 4e-6);
}

TEST(RmsNorm, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = random({301, 96}, 1), dy = random({301, 96}, 2), weight = random({96}, 3);

  const auto results = with_threads([&] {
    const RmsNormOut out = rms_norm(x, weight, kEps);
    const at::Tensor dweight = at::empty({96}, at::kFloat);
    const at::Tensor dx = rms_norm_backward(dy, x, out.rstd_N, weight, dweight, false);
    return at::cat({out.y_NC, dx, dweight.unsqueeze(0)});
  });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST(RmsNorm, AddsToItsDestinationOrSkipsIt) {
  const at::Tensor x = random({40, 24}, 1), dy = random({40, 24}, 2), weight = random({24}, 3);
  const at::Tensor rstd = rms_norm(x, weight, kEps).rstd_N, dweight = at::empty({24}, at::kFloat);
  const at::Tensor dx = rms_norm_backward(dy, x, rstd, weight, dweight, false);
  const at::Tensor twice = dweight.clone();

  rms_norm_backward(dy, x, rstd, weight, twice, true);
  const at::Tensor alone = rms_norm_backward(dy, x, rstd, weight, {}, false);

  EXPECT_TRUE(same_bits(twice, dweight * 2));
  EXPECT_TRUE(same_bits(alone, dx));
}

TEST(RmsNorm, ZerosStayZeros) {
  const at::Tensor y = rms_norm(at::zeros({2, 20}), at::ones({20}), kEps).y_NC;

  EXPECT_TRUE((y == 0).all().item<bool>());
}

TEST(RmsNorm, WorksOnMetaAndRefusesAWeightOfAnotherSize) {
  const at::Tensor x =
      at::empty({4, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor weight = at::empty({8}, x.options());

  const RmsNormOut out = rms_norm(x, weight, kEps);
  const at::Tensor dx = rms_norm_backward(x, x, out.rstd_N, weight, {}, false);

  EXPECT_EQ(out.y_NC.scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.rstd_N.scalar_type(), at::kFloat);
  EXPECT_TRUE(dx.is_meta());
  EXPECT_THROW(rms_norm(random({2, 3}, 1), random({4}, 2), kEps), Error);
}

}  // namespace
}  // namespace tessera::ops
