// SPDX-License-Identifier: Apache-2.0
// Rounding to quantized formats and back, compared with torchao 0.18: IntxFakeQuantizer (int8 per
// token), Int4WeightFakeQuantizer (bf16 activations, groups of 32), Float8FakeQuantizer, MXTensor
// (RCEIL) and NVFP4Tensor (with a scale of the tensor).
#include "tessera/ops/fake_quantize.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera::ops {
namespace {

constexpr std::int64_t kN = 4, kI = 64;

/// Fractions of several sizes, and a row whose second half is 0.
at::Tensor input() {
  const at::Tensor i = at::arange(kN * kI, at::kLong).view({kN, kI});
  const at::Tensor sizes = at::tensor({1.0F, 0.125F, 3.0F, 1e-3F}).view({kN, 1});
  const at::Tensor growth = (at::floor_divide(i, 16) % 3).to(at::kFloat) + 1;
  at::Tensor x = ((i * 37) % 101 - 50).to(at::kFloat) / 64.0 * sizes * growth;
  x[3].narrow(0, 32, 32).zero_();
  return x;
}

struct Expected {
  FakeFormat format;
  std::array<double, 7> values;  ///< at [0,0], [0,17], [1,5], [1,40], [2,33], [2,63] and [3,2]
  double sum, size;              ///< of all values, and of their magnitudes
};

void expect_values(const at::Tensor& y, const Expected& expected) {
  const std::array<std::pair<int, int>, 7> places = {
      {{0, 0}, {0, 17}, {1, 5}, {1, 40}, {2, 33}, {2, 63}, {3, 2}}};
  for (std::size_t p = 0; p < places.size(); ++p) {
    const double value = y[places[p].first][places[p].second].item<double>();
    EXPECT_NEAR(value, expected.values[p], 2e-6 * std::abs(expected.values[p])) << p;
  }
  EXPECT_EQ(y[3][40].item<double>(), 0.0);
  EXPECT_NEAR(y.to(at::kDouble).sum().item<double>(), expected.sum, 1e-4);
  EXPECT_NEAR(y.to(at::kDouble).abs().sum().item<double>(), expected.size, 1e-4);
}

TEST(FakeQuantized, IsThatOfTorchao) {
  const std::vector<Expected> all = {{FakeFormat::Int8Row,
                                      {-0.786213219,
                                       -0.836397052,
                                       -0.0863970667,
                                       -0.0777573586,
                                       4.59375,
                                       6.75551462,
                                       -0.000668137276},
                                      12.1212415,
                                      224.322505},
                                     {FakeFormat::Int4Group,
                                      {-0.787499964,
                                       -0.787499964,
                                       -0.0859375075,
                                       -0.0856770799,
                                       4.98750019,
                                       6.75000048,
                                       -0.000685416686},
                                      14.0315178,
                                      225.742502},
                                     {FakeFormat::Fp8Row,
                                      {-0.803571403,
                                       -0.803571403,
                                       -0.0904017836,
                                       -0.0803571418,
                                       4.52008915,
                                       6.52901793,
                                       -0.000681919628},
                                      12.6232569,
                                      223.855905},
                                     {FakeFormat::Mxfp4,
                                      {-0.75, -0.75, -0.09375, -0.0625, 4.0, 6.0, -0.000732421875},
                                      9.40625,
                                      219.143066},
                                     {FakeFormat::Nvfp4,
                                      {-0.753348231,
                                       -0.753348231,
                                       -0.0941685289,
                                       -0.0627790168,
                                       4.52008915,
                                       6.5290184,
                                       -0.000796999317},
                                      11.519557,
                                      220.168762}};
  for (const Expected& one : all) {
    SCOPED_TRACE(static_cast<int>(one.format));
    expect_values(fake_quantized(input(), one.format, 32), one);
  }
}

TEST(FakeQuantized, GivesPartsOfAWeightAScaleEach) {
  const at::Tensor part_N = at::tensor({0, 0, 1, 1}, at::kLong);

  expect_values(fake_quantized(input(), FakeFormat::Nvfp4, 0, part_N),
                {FakeFormat::Nvfp4,
                 {-0.803571403,
                  -0.803571403,
                  -0.100446425,
                  -0.0669642836,
                  4.52008915,
                  6.5290184,
                  -0.000796999317},
                 11.6614374,
                 220.91353});
}

TEST(FakeQuantized, KeepsTheTypeAndWhatIsRoundedAlready) {
  for (const FakeFormat format : {FakeFormat::Fp8Row, FakeFormat::Mxfp4}) {
    const at::Tensor once = fake_quantized(input(), format, 0);
    EXPECT_LT((fake_quantized(once, format, 0) - once).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(fake_quantized(input().to(at::kBFloat16), format, 0).scalar_type(), at::kBFloat16);
  }
  EXPECT_TRUE(fake_quantized(at::zeros({2, 32}), FakeFormat::Nvfp4, 0).eq(0).all().item<bool>());
}

}  // namespace
}  // namespace tessera::ops
