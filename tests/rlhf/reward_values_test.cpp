// SPDX-License-Identifier: Apache-2.0
// The mean reward that a rollout tells while it is written.
#include "tessera/rlhf/reward_values.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/config/json.h"

namespace tessera::rlhf {
namespace {

std::vector<tasks::RlReward> rewards_of(const std::string& list) {
  config::Problems problems;
  std::vector<tasks::RlReward> out = tasks::read_rewards(json::parse(list, "rewards"), problems);
  problems.raise();
  return out;
}

TEST(RlMeanOfRules, IsTheMeanOfTheWeightedSumsOfRulesAlone) {
  const json::Value record = json::parse(R"({"answer": "yes"})", "record");
  const std::vector<tasks::Answer> answers = {
      {.record = record, .place = "a:1", .prompt = "q", .text = "yes", .tokens = 1, .ended = true},
      {.record = record, .place = "a:1", .prompt = "q", .text = "no", .tokens = 9, .ended = true}};
  const auto rewards = rewards_of(
      R"([{"type": "exact_match", "weight": 2}, {"type": "length", "max": 4, "weight": 0.5},
          {"type": "command", "command": ["/bin/false"]}])");

  // The first earns 2 + 0.5, the second nothing; the program is not asked.
  EXPECT_DOUBLE_EQ(mean_of_rules(rewards, answers).value(), 1.25);
  EXPECT_FALSE(mean_of_rules(rewards, {}).has_value());
  EXPECT_FALSE(
      mean_of_rules(rewards_of(R"([{"type": "command", "command": ["/bin/false"]}])"), answers)
          .has_value());
}

}  // namespace
}  // namespace tessera::rlhf
