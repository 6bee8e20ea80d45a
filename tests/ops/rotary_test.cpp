// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <complex>

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3, kTokens = 37;

/// Text after text: in the second batch from another place on.
at::Tensor positions() {
  at::Tensor out = at::empty({kBatch, kTokens}, at::kLong);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    out[0][t] = t;
    out[1][t] = 5000 + 3 * t;
  }
  return out;
}

/// Every pair as a complex number times e^(i * angle), or e^(-i * angle).
std::vector<double> reference(const at::Tensor& x_BHTK,
                              const at::Tensor& positions_BT,
                              const std::vector<double>& frequencies,
                              double direction) {
  const at::Tensor out = x_BHTK.to(at::kDouble).contiguous().clone();
  auto y = out.accessor<double, 4>();
  const auto place = positions_BT.accessor<std::int64_t, 2>();
  const auto P = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t b = 0; b < out.size(0); ++b) {
    for (std::int64_t h = 0; h < out.size(1); ++h) {
      for (std::int64_t t = 0; t < out.size(2); ++t) {
        for (std::int64_t p = 0; p < P; ++p) {
          const double angle = direction *
                               static_cast<double>(place[positions_BT.size(0) == 1 ? 0 : b][t]) *
                               frequencies[static_cast<std::size_t>(p)];
          const std::complex<double> pair =
              std::complex<double>(y[b][h][t][p], y[b][h][t][p + P]) * std::polar(1.0, angle);
          y[b][h][t][p] = pair.real();
          y[b][h][t][p + P] = pair.imag();
        }
      }
    }
  }
  return doubles(out);
}

class RotaryDtypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  /// Sine and cosine are rounded, two products and their sum too; then once to the dtype.
  double tolerance() const { return 4 * 0x1p-24 + epsilon(GetParam()); }
};

TEST_P(RotaryDtypes, TurnsPairsAndGradientsBackAsComplexNumbersDo) {
  // Heads below, at and beyond two strides of 16 channels.
  for (const std::int64_t K : {2, 6, 32, 64, 70}) {
    SCOPED_TRACE(K);
    const std::vector<double> frequencies = rotary_frequencies(K, 10000.0);
    const RotaryTable table = rotary_table(positions(), frequencies);
    const at::Tensor x = random({kBatch, kHeads, kTokens, K}, 1, GetParam());

    const at::Tensor y = rotary(x, table), back = rotary_backward(x, table);

    EXPECT_EQ(y.scalar_type(), GetParam());
    expect_close(y, reference(x, positions(), frequencies, 1.0), tolerance());
    expect_close(back, reference(x, positions(), frequencies, -1.0), tolerance());
  }
}

TEST_P(RotaryDtypes, TakesHeadsOfAFusedProjectionAndOneTableForAllSamples) {
  constexpr std::int64_t K = 24;
  const at::Tensor fused = random({kBatch, kTokens, 3, kHeads, K}, 1, GetParam());
  const at::Tensor x = fused.select(2, 1).transpose(1, 2), place = positions().narrow(0, 1, 1);
  const std::vector<double> frequencies = rotary_frequencies(K, 500000.0);

  const at::Tensor y = rotary(x, rotary_table(place, frequencies));

  EXPECT_TRUE(y.transpose(1, 2).is_contiguous());
  expect_close(y, reference(x, place, frequencies, 1.0), tolerance());
}

TEST_P(RotaryDtypes, LeavesChannelsBeyondItsPairsAlone) {
  constexpr std::int64_t K = 29, kTurned = 10;
  const std::vector<double> frequencies = rotary_frequencies(kTurned, 10000.0);
  const at::Tensor x = random({kBatch, kHeads, kTokens, K}, 1, GetParam());

  const at::Tensor y = rotary(x, rotary_table(positions(), frequencies));

  EXPECT_TRUE(same_bits(y.narrow(3, kTurned, K - kTurned).contiguous(),
                        x.narrow(3, kTurned, K - kTurned).contiguous()));
  expect_close(y, reference(x, positions(), frequencies, 1.0), tolerance());
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         RotaryDtypes,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(Rotary, FrequenciesFallFromOneByTheBase) {
  const std::vector<double> four = rotary_frequencies(8, 10000.0);

  ASSERT_EQ(four.size(), 4U);
  const double expected[] = {1.0, 0.1, 0.01, 0.001};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(four[i], expected[i], 1e-15);
  EXPECT_THROW(rotary_frequencies(7, 10000.0), Error);
}

TEST(Rotary, DividesAllFrequenciesByALinearFactor) {
  const RotaryScaling linear{.kind = rotary_scaling_from_name("linear"), .factor = 2.0};

  const std::vector<double> plain = rotary_frequencies(16, 10000.0),
                            scaled = rotary_frequencies(16, 10000.0, linear);

  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(scaled[i], plain[i] / 2.0);
}

// As transformers writes it, by wavelengths.
TEST(Rotary, InterpolatesBetweenShortAndLongWavelengthsAsLlama3Does) {
  constexpr double kPi = 3.14159265358979323846;
  const RotaryScaling llama3{.kind = rotary_scaling_from_name("llama3"),
                             .factor = 8.0,
                             .low_freq_factor = 1.0,
                             .high_freq_factor = 4.0,
                             .original_positions = 8192};

  const std::vector<double> plain = rotary_frequencies(128, 500000.0),
                            scaled = rotary_frequencies(128, 500000.0, llama3);

  int kept = 0, divided = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * kPi / plain[i];
    double expected = 0;
    if (wavelength < 8192.0 / 4.0) {
      expected = plain[i];
      ++kept;
    } else if (wavelength > 8192.0 / 1.0) {
      expected = plain[i] / 8.0;
      ++divided;
    } else {
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      expected = (1.0 - smooth) * plain[i] / 8.0 + smooth * plain[i];
      ++between;
    }
    EXPECT_NEAR(scaled[i], expected, 1e-14 * expected) << "pair " << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(Rotary, RefusesScalingsItDoesNotHave) {
  EXPECT_THROW((void)rotary_scaling_from_name("llama33"), Error);
  const auto refuses = [](RotaryScaling scaling) {
    EXPECT_THROW((void)rotary_frequencies(8, 10000.0, scaling), Error);
  };
  refuses({.kind = RotaryScalingKind::Linear, .factor = 0.0});
  refuses({.kind = RotaryScalingKind::Llama3, .factor = 8.0, .high_freq_factor = 1.0});
  refuses({.kind = RotaryScalingKind::Llama3, .factor = 8.0, .original_positions = 0});
}

TEST(Rotary, ScoresDependOnDistancesAlone) {
  constexpr std::int64_t K = 16;
  const at::Tensor q = random({1, 1, 1, K}, 1), k = random({1, 1, 1, K}, 2);
  const auto score = [&](std::int64_t query, std::int64_t key) {
    const std::vector<double> frequencies = rotary_frequencies(K, 10000.0);
    const at::Tensor turned_q = rotary(q, rotary_table(int64s({query}).view({1, 1}), frequencies)),
                     turned_k = rotary(k, rotary_table(int64s({key}).view({1, 1}), frequencies));
    return (turned_q * turned_k).sum().item<double>();
  };

  EXPECT_NEAR(score(7, 2), score(1005, 1000), 1e-5);
  EXPECT_GT(std::abs(score(7, 2) - score(7, 6)), 1e-3);
}

TEST(Rotary, HasTheSameBitsForAnyNumberOfThreadsAndForATokenAlone) {
  constexpr std::int64_t K = 64, T = 301;
  const at::Tensor x = random({2, 4, T, K}, 1), place = at::arange(T, at::kLong).view({1, T});
  const std::vector<double> frequencies = rotary_frequencies(K, 10000.0);

  const auto results = with_threads([&] { return rotary(x, rotary_table(place, frequencies)); });
  const at::Tensor alone =
      rotary(x.narrow(2, 150, 1), rotary_table(place.narrow(1, 150, 1), frequencies));

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
  EXPECT_TRUE(same_bits(alone, results[0].narrow(2, 150, 1)));
}

TEST(Rotary, WorksOnMetaAndRefusesTablesThatDoNotFit) {
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({2, 3, 5, 8}, meta.dtype(at::kBFloat16));
  const std::vector<double> frequencies = rotary_frequencies(8, 10000.0);
  const RotaryTable table = rotary_table(at::empty({1, 5}, meta.dtype(at::kLong)), frequencies);

  EXPECT_EQ(table.cosine_BTP.sizes(), (std::vector<std::int64_t>{1, 5, 4}));
  EXPECT_EQ(rotary(x, table).sizes(), x.sizes());
  EXPECT_EQ(rotary_backward(x, table).scalar_type(), at::kBFloat16);
  const at::Tensor five = at::arange(5, at::kLong).view({1, 5});
  const RotaryTable fits = rotary_table(five, frequencies);
  EXPECT_NO_THROW(rotary(random({2, 3, 5, 8}, 1), fits));
  EXPECT_THROW(rotary(random({2, 3, 6, 8}, 1), fits), Error);
  EXPECT_THROW(rotary(random({2, 3, 5, 6}, 1), fits), Error);
  EXPECT_THROW(rotary_table(five.to(at::kFloat), frequencies), Error);
}

}  // namespace
}  // namespace tessera::ops
