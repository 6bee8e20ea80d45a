// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/sampler.h"

#include <map>

#include "ops/support.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr int kDraws = 20000;

at::Tensor logits(const std::vector<double>& probabilities) {
  return at::tensor(probabilities, at::kDouble).log().to(at::kFloat);
}

std::map<std::int64_t, double> shares(const at::Tensor& logits_V, const SamplerOptions& options) {
  std::map<std::int64_t, double> out;
  for (int i = 0; i < kDraws; ++i)
    out[sample_token(logits_V, logits_V.numel(), options, 7, i)] += 1.0 / kDraws;
  return out;
}

// Five standard deviations of a share of 20,000 draws.
constexpr double kBound = 5 * 0.5 / 141.4;

TEST(Sampler, TemperatureZeroTakesTheLowestOfTheBest) {
  const at::Tensor x = at::tensor({0.0F, 3.0F, 1.0F, 3.0F}, at::kFloat);

  EXPECT_EQ(sample_token(x, 4, {.temperature = 0.0}, 1, 0), 1);
}

TEST(Sampler, TopOneIsGreedyAtAnyTemperature) {
  const at::Tensor x = at::tensor({0.0F, 3.0F, 1.0F, 3.0F}, at::kFloat);

  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(sample_token(x, 4, {.temperature = 5.0, .top_k = 1}, 1, i), 1);
}

TEST(Sampler, DrawsInProportion) {
  auto share = shares(logits({0.5, 0.1, 0.4}), {});

  EXPECT_NEAR(share[0], 0.5, kBound);
  EXPECT_NEAR(share[1], 0.1, kBound);
  EXPECT_NEAR(share[2], 0.4, kBound);
}

TEST(Sampler, TemperatureSharpens) {
  auto share = shares(logits({0.6, 0.4}), {.temperature = 0.5});

  EXPECT_NEAR(share[0], 0.36 / (0.36 + 0.16), kBound);
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  auto share = shares(logits({0.1, 0.4, 0.2, 0.3}), {.top_k = 2});

  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share[1], 4.0 / 7.0, kBound);
  EXPECT_NEAR(share[3], 3.0 / 7.0, kBound);
}

TEST(Sampler, TheNucleusIsTheSmallestSetThatReachesItsShare) {
  auto share = shares(logits({0.1, 0.5, 0.15, 0.25}), {.top_p = 0.7});

  EXPECT_EQ(share.size(), 2U);
  EXPECT_NEAR(share[1], 2.0 / 3.0, kBound);
  EXPECT_EQ(shares(logits({0.1, 0.5, 0.4}), {.top_p = 0.01}).size(), 1U);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  const at::Tensor x = random({50}, 1);

  EXPECT_EQ(sample_token(x, 50, {}, 3, 9), sample_token(x.clone(), 50, {}, 3, 9));
  std::map<std::int64_t, int> seen;
  for (int seed = 0; seed < 100; ++seed)
    ++seen[sample_token(x, 50, {}, seed, 9)];
  EXPECT_GT(seen.size(), 20U);
}

TEST(Sampler, RowsBeyondTheVocabularyAreNeverDrawn) {
  const at::Tensor x = at::tensor({0.0F, 0.0F, 100.0F}, at::kFloat);

  for (int i = 0; i < 100; ++i)
    EXPECT_LT(sample_token(x, 2, {}, 1, i), 2);
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  EXPECT_THROW(sample_token(at::tensor({0.0F, std::nanf("")}, at::kFloat), 2, {}, 1, 0), Error);
}

}  // namespace
}  // namespace tessera::ops
