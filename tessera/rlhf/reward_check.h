// SPDX-License-Identifier: Apache-2.0
// Tests a reward model on held-out pairs before a policy learns from its scores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/tasks/preference_pairs.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/reward.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

struct RewardCheck {
  std::int64_t pairs = 0;
  double accuracy = 0.0;            ///< share of the pairs whose chosen text has the higher score
  double length_correlation = 0.0;  ///< Pearson's, of score and number of tokens; 0 if undefined
  /// Share of the pairs in which the prompt with an empty answer has a higher score than the chosen
  /// text.
  double empty_preferred = 0.0;
  /// Sentences about what is wrong; empty if nothing is.
  [[nodiscard]] std::vector<std::string> complaints() const;
};
json::Value to_json(const RewardCheck& check);

/// `score` returns the scores of rows of `length` tokens; `end` is the token that ends a text.
/// Pairs of which a text is longer than `length` are left out. Throws Error{Data} if no pair is
/// left.
RewardCheck check_reward(const tasks::PreferenceSamples& pairs,
                         std::int64_t length,
                         std::int32_t pad_id,
                         std::int32_t end,
                         const std::function<std::vector<double>(const Rows& rows)>& score);

/// Tests the reward models that have held-out pairs and warns of what is wrong. `run_dir` gets the
/// results in reward_models.json; empty: nothing is written. Collective.
void test_rewards(const planner::Plan& plan,
                  const std::vector<tasks::RlReward>& rewards,
                  const tasks::Prompts& prompts,
                  RewardValues& values,
                  comm::World& world,
                  const std::filesystem::path& run_dir);

}  // namespace tessera::rlhf
