// SPDX-License-Identifier: Apache-2.0
// Tests a reward model on held-out pairs before a policy learns from its scores.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/engine/rl/completions.h"
#include "tessera/tasks/preferences.h"

namespace tessera::engine::rl {

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

}  // namespace tessera::engine::rl
