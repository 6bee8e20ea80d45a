// SPDX-License-Identifier: Apache-2.0
// How rewards become advantages, against numbers worked out by hand and published ones.
#include "tessera/rlhf/estimators.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/rlhf/completions.h"

namespace tessera::rlhf {
namespace {

using tasks::KlPlace;
using tasks::RlOptions;

/// Completions of one prompt of two tokens: of 1, 2, 3 and 1 tokens, in rows of six columns.
Scored scored(std::vector<double> rewards) {
  const std::vector<std::vector<std::int32_t>> texts = {{5}, {6, 7}, {8, 9, 4}, {3}};
  const std::vector<std::int32_t> prompt = {1, 2};
  std::vector<RowOf> rows;
  for (std::size_t i = 0; i < rewards.size(); ++i)
    rows.push_back({prompt, texts[i % texts.size()]});
  const Rows made = rows_of(rows, 6, 0);
  Scored out;
  out.mask_BT = made.labels_BT.ge(0);
  out.rewards_BF = at::tensor(rewards, at::kDouble).unsqueeze(1);
  out.weights_F = at::ones({1}, at::kDouble);
  out.old_BT = in_columns(made, [](std::int64_t row, std::int64_t token) {
    return -1.0 - 0.5 * static_cast<double>(row) - 0.25 * static_cast<double>(token);
  });
  out.reference_BT = in_columns(made, [](std::int64_t row, std::int64_t token) {
    return -1.5 - 0.5 * static_cast<double>(row) + 0.25 * static_cast<double>(token);
  });
  return out;
}

std::vector<double> row(const at::Tensor& of_BT, std::int64_t b) {
  const at::Tensor own = of_BT[b].contiguous();
  return {own.const_data_ptr<double>(), own.const_data_ptr<double>() + own.numel()};
}

void expect_near(const std::vector<double>& given, const std::vector<double>& wanted) {
  ASSERT_EQ(given.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(given[i], wanted[i], 1e-12) << i;
}

TEST(RlRows, HaveLabelsWhereACompletionIsPredicted) {
  const std::vector<std::int32_t> prompt = {1, 2}, text = {8, 9, 4};
  const std::vector<RowOf> rows = {{prompt, text}};
  const Rows made = rows_of(rows, 6, 77);

  EXPECT_TRUE(made.input_ids_BT.equal(at::tensor({1, 2, 8, 9, 4, 77}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(
      made.labels_BT.equal(at::tensor({-100, 8, 9, 4, -100, -100}, at::kLong).unsqueeze(0)));
}

TEST(RlRows, OfConsecutivePromptsAreMadeTogether) {
  using Units = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(units_of(5, 1, 2), (Units{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(units_of(2, 3, 1), (Units{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(units_of(0, 3, 1), Units());
}

TEST(RlRows, AreComputedUpToTheLongest) {
  const std::vector<std::int32_t> prompt(7, 1), brief(2, 3), longer(10, 3);
  const std::vector<RowOf> rows = {{prompt, brief}, {prompt, brief}, {prompt, longer}};
  const Rows made = rows_of(rows, 40, 0);
  EXPECT_EQ(made.columns(0, 2), 16);
  EXPECT_EQ(made.columns(1, 2), 32);
  EXPECT_EQ(made.columns(3, 0), 16);
  EXPECT_EQ(rows_of(rows, 20, 0).columns(0, 3), 20);
}

// TRL's goldens of these eight rewards.
TEST(RlEstimators, GiveThePublishedAdvantagesOfAGroup) {
  const Scored in = scored({1, 0, 0, 1, 1, 0, 0, 0});
  RlOptions options;
  options.samples = 8;
  const Advantages group = advantage_estimators().get("group")(in, options);
  const Advantages others = advantage_estimators().get("leave_one_out")(in, options);

  EXPECT_NEAR(group.advantages_BT[0][1].item<double>(), 1.2073814, 1e-7);
  EXPECT_NEAR(group.advantages_BT[2][2].item<double>(), -0.7244289, 1e-7);
  EXPECT_NEAR(others.advantages_BT[0][1].item<double>(), 0.7142857, 1e-7);
  EXPECT_NEAR(others.advantages_BT[1][1].item<double>(), -0.4285714, 1e-7);
  // Each token of a completion has it, and no other column.
  const double low = group.advantages_BT[2][2].item<double>();
  expect_near(row(group.advantages_BT, 2), {0, low, low, low, 0, 0});
}

TEST(RlEstimators, ChargeTheDivergenceOfACompletion) {
  const Scored in = scored({1, 0});
  RlOptions options;
  options.samples = 2;
  options.advantage.scale = "none";
  options.kl = {.coefficient = 0.1, .estimator = "k1", .place = KlPlace::Reward};
  // Log-ratios: 0.5 of the first; 0.5 and 0 of the second. Both completions cost 0.05.
  expect_near(row(advantage_estimators().get("group")(in, options).advantages_BT, 0),
              {0, 0.5, 0, 0, 0, 0});
  options.kl.coefficient = 0.0;
  options.kl.place = KlPlace::Loss;
  expect_near(row(advantage_estimators().get("leave_one_out")(in, options).advantages_BT, 1),
              {0, -1, -1, 0, 0, 0});
}

TEST(RlEstimators, GiveTokensTheRewardsBehindThem) {
  const Scored in = scored({1, 2, 3});
  RlOptions options;
  options.kl = {.coefficient = 0.1, .estimator = "k1", .place = KlPlace::Reward};
  options.advantage.gamma = 0.5;
  // The third completion: log-ratios 0.5, 0, -0.5, and its reward with the last token.
  const double last = 3 + 0.05, middle = 0.5 * last, first = -0.05 + 0.5 * middle;
  expect_near(row(advantage_estimators().get("to_go")(in, options).advantages_BT, 2),
              {0, first, middle, last, 0, 0});
}

TEST(RlEstimators, ClipRewardsBeforeTheyAreCompared) {
  const Scored in = scored({7, 0});
  RlOptions options;
  options.samples = 2;
  options.advantage.scale = "none";
  options.advantage.clip_reward = 2.0;
  expect_near(row(advantage_estimators().get("group")(in, options).advantages_BT, 0),
              {0, 1, 0, 0, 0, 0});
}

TEST(RlEstimators, LookBehindTheTokensWithACritic) {
  Scored in = scored({1, 2, 3});
  in.values_BT = at::full_like(in.old_BT, 0.5);
  RlOptions options;
  options.advantage.lambda = 0.5;
  options.advantage.gamma = 1.0;
  const Advantages made = advantage_estimators().get("gae")(in, options);
  // The third has the errors 0, 0 and 3 - 0.5; each token also gets half of the next one's.
  expect_near(row(made.advantages_BT, 2), {0, 0.625, 1.25, 2.5, 0, 0});
  expect_near(row(made.returns_BT, 2), {0, 1.125, 1.75, 3, 0, 0});
}

// DeepSpeed-Chat gives the score to the column behind the answer, whose value is known too.
TEST(RlEstimators, GiveTheScoreBehindTheAnswerAsDeepSpeedChatDoes) {
  Scored in = scored({7, 2});
  in.values_BT = at::full_like(in.old_BT, 0.5);
  RlOptions options;
  options.kl = {.coefficient = 0.1, .estimator = "k1", .place = KlPlace::Reward};
  options.advantage = {.estimator = "dschat_gae", .gamma = 1.0, .lambda = 1.0, .clip_reward = 5.0};
  const Advantages made = advantage_estimators().get("dschat_gae")(in, options);
  // The first: -0.1 * 0.5 at its token, and 5 behind it; with lambda 1 that is all but the value.
  expect_near(row(made.advantages_BT, 0), {0, -0.05 + 5 - 0.5, 0, 0, 0, 0});
  expect_near(row(made.returns_BT, 0), {0, 4.95, 0, 0, 0, 0});
}

}  // namespace
}  // namespace tessera::rlhf
