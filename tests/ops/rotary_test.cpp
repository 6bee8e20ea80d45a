// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <utility>

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3, kTokens = 37;

/// Positions of two texts: the second batch begins at another position.
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

// Neighbours are pairs: with the channels of each pair apart they turn as halves do.
TEST_P(RotaryDtypes, TurnsNeighboursAsHalvesInAnotherOrder) {
  for (const std::int64_t K : {2, 6, 32, 64, 70}) {
    SCOPED_TRACE(K);
    const std::int64_t turned = K > 40 ? K - 8 : K;
    const std::vector<double> frequencies = rotary_frequencies(turned, 10000.0);
    RotaryTable table = rotary_table(positions(), frequencies, 1.5), halves = table;
    table.interleaved = true;
    const at::Tensor x = random({kBatch, kHeads, kTokens, K}, 1, GetParam());
    at::Tensor order = at::arange(K);
    order.narrow(0, 0, turned).copy_(at::cat({at::arange(0, turned, 2), at::arange(1, turned, 2)}));
    const at::Tensor apart = x.index_select(3, order).contiguous();

    const at::Tensor y = rotary(x, table), back = rotary_backward(x, table);

    EXPECT_TRUE(same_bits(y.index_select(3, order), rotary(apart, halves)));
    EXPECT_TRUE(same_bits(back.index_select(3, order), rotary_backward(apart, halves)));
  }
}

TEST_P(RotaryDtypes, MultipliesWhatTurnsByTheFactor) {
  constexpr std::int64_t K = 24;
  const std::vector<double> frequencies = rotary_frequencies(K, 10000.0);
  const at::Tensor x = random({kBatch, kHeads, kTokens, K}, 1, GetParam());
  std::vector<double> expected = reference(x, positions(), frequencies, 1.0);
  for (double& value : expected)
    value *= 1.25;

  expect_close(rotary(x, rotary_table(positions(), frequencies, 1.25)), expected, tolerance());
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

// Computed by transformers.
TEST(Rotary, ScalesFrequenciesAsPublishedModelsDo) {
  const auto expect = [](const std::vector<double>& frequencies,
                         const std::vector<std::pair<std::size_t, double>>& expected) {
    for (const auto& [pair, value] : expected)
      EXPECT_NEAR(frequencies.at(pair) / value, 1.0, 1e-6) << pair;
  };
  const RotaryScaling llama_3_2{.kind = RotaryScalingKind::Llama3, .factor = 32.0},
      llama_3_1{.kind = RotaryScalingKind::Llama3, .factor = 8.0},
      yarn{.kind = RotaryScalingKind::Yarn, .factor = 4.0, .original_positions = 32768};
  expect(rotary_frequencies(64, 5e5, llama_3_2),
         {{0, 1.0},
          {8, 0.0376060309},
          {14, 0.00321144599},
          {15, 0.00129054793},
          {16, 4.29556797e-4},
          {17, 9.7082878e-5},
          {18, 1.94616382e-5},
          {31, 9.41830673e-8}});
  expect(rotary_frequencies(128, 5e5, llama_3_1),
         {{28, 0.00321144599},
          {29, 0.00216657076},
          {32, 5.24846161e-4},
          {36, 7.78465527e-5},
          {63, 3.06892599e-7}});
  expect(rotary_frequencies(128, 1e6, yarn),
         {{22, 0.00865964323}, {30, 0.00106436098}, {41, 3.58253143e-5}});
  EXPECT_NEAR(rotary_attention_factor(yarn), 1.13862944, 1e-8);
}

TEST(Rotary, TakesTheAttentionFactorOfYarnFromTheFileOrTheRule) {
  RotaryScaling yarn{.kind = RotaryScalingKind::Yarn, .factor = 40.0};
  const auto rule = [](double scale) { return 0.1 * scale * std::log(40.0) + 1.0; };
  EXPECT_NEAR(rotary_attention_factor(yarn), rule(1.0), 1e-15);
  yarn.mscale = 0.707;
  EXPECT_NEAR(rotary_attention_factor(yarn), rule(1.0), 1e-15);
  yarn.mscale_all_dim = 1.0;
  EXPECT_NEAR(rotary_attention_factor(yarn), rule(0.707) / rule(1.0), 1e-15);
  yarn.attention_factor = 0.9;
  EXPECT_EQ(rotary_attention_factor(yarn), 0.9);
  EXPECT_EQ(rotary_attention_factor({.kind = RotaryScalingKind::Linear, .factor = 4.0}), 1.0);
}

// Without truncation to whole pairs the ramp begins elsewhere.
TEST(Rotary, CutsTheRampOfYarnAtWholePairsOnlyIfAsked) {
  RotaryScaling yarn{.kind = RotaryScalingKind::Yarn, .factor = 4.0, .original_positions = 32768};
  const std::vector<double> plain = rotary_frequencies(128, 1e6);
  yarn.truncate = false;
  const std::vector<double> scaled = rotary_frequencies(128, 1e6, yarn);
  const auto pair_of = [](double turns) {
    return 128.0 * std::log(32768.0 / (turns * 2.0 * M_PI)) / (2.0 * std::log(1e6));
  };
  const double low = pair_of(32.0), high = pair_of(1.0);
  for (std::size_t pair = 0; pair < 64; ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(scaled[pair] / (plain[pair] * (1.0 - ramp + ramp / 4.0)), 1.0, 1e-12) << pair;
  }
}

TEST(Rotary, ChoosesLongRopesFactorsByTheLongestText) {
  RotaryScaling scaling{.kind = rotary_scaling_from_name("longrope"),
                        .factor = 32.0,
                        .original_positions = 4096,
                        .short_factors = {1.0, 1.5},
                        .long_factors = {2.0, 8.0},
                        .longest_text = 4096};
  const std::vector<double> plain = rotary_frequencies(4, 10000.0);
  EXPECT_NEAR(rotary_frequencies(4, 10000.0, scaling)[1], plain[1] / 1.5, 1e-15);
  scaling.longest_text = 4097;
  EXPECT_NEAR(rotary_frequencies(4, 10000.0, scaling)[1], plain[1] / 8.0, 1e-15);
  EXPECT_NEAR(
      rotary_attention_factor(scaling), std::sqrt(1.0 + std::log(32.0) / std::log(4096.0)), 1e-15);
  EXPECT_THROW(rotary_frequencies(6, 10000.0, scaling), Error);
}

TEST(Rotary, DividesAllFrequenciesByALinearFactor) {
  const RotaryScaling linear{.kind = rotary_scaling_from_name("linear"), .factor = 2.0};

  const std::vector<double> plain = rotary_frequencies(16, 10000.0),
                            scaled = rotary_frequencies(16, 10000.0, linear);

  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(scaled[i], plain[i] / 2.0);
}

// As transformers computes it, by wavelengths.
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

// The factors of Llama 4 Scout.
TEST(Rotary, InterpolatesNothingBetweenEqualFactorsOfLlama3) {
  const std::vector<double> plain = rotary_frequencies(128, 500000.0),
                            scaled = rotary_frequencies(128,
                                                        500000.0,
                                                        {.kind = RotaryScalingKind::Llama3,
                                                         .factor = 16.0,
                                                         .high_freq_factor = 1.0,
                                                         .original_positions = 8192});

  int kept = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const bool short_wave = 2.0 * M_PI / plain[i] < 8192.0;
    EXPECT_DOUBLE_EQ(scaled[i], short_wave ? plain[i] : plain[i] / 16.0) << "pair " << i;
    kept += short_wave ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 64);
}

TEST(Rotary, RefusesScalingsItDoesNotHave) {
  EXPECT_THROW((void)rotary_scaling_from_name("llama33"), Error);
  const auto refuses = [](RotaryScaling scaling) {
    EXPECT_THROW((void)rotary_frequencies(8, 10000.0, scaling), Error);
  };
  refuses({.kind = RotaryScalingKind::Linear, .factor = 0.0});
  refuses({.kind = RotaryScalingKind::Llama3, .factor = 8.0, .high_freq_factor = 0.5});
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
