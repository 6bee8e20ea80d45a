// SPDX-License-Identifier: Apache-2.0
// The penalties that transformers does not have; the other rules are compared with recorded ones.
#include "tessera/engine/logits_rules.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::engine {
namespace {

using ::testing::ElementsAre;

// The definition is that of OpenAI's API: once for each occurrence, and once for any.
TEST(CountPenalties, CountGeneratedTokensOnly) {
  const std::vector<std::int32_t> ids = {0, 1, 2, 2, 3, 2};
  const TokenHistory seen = {.ids = ids, .prompt = 2};

  std::vector<double> logits(5, 1.0);
  apply_count_penalties(logits, seen, 0.25, 0.0);
  EXPECT_THAT(logits, ElementsAre(1.0, 1.0, 0.25, 0.75, 1.0));

  logits.assign(5, 1.0);
  apply_count_penalties(logits, seen, 0.0, 0.5);
  EXPECT_THAT(logits, ElementsAre(1.0, 1.0, 0.5, 0.5, 1.0));
}

TEST(CountPenalties, AreRulesOfGreedyTextsToo) {
  const std::vector<std::int32_t> ids = {4, 1, 1};
  const TokenHistory seen = {.ids = ids, .prompt = 1};
  const LogitsRules rules = {.frequency_penalty = 0.25, .presence_penalty = -0.125};
  EXPECT_TRUE(rules.any());

  std::vector<double> logits(5, 0.0);
  apply_rules(logits, rules, seen, {});
  EXPECT_THAT(logits, ElementsAre(0.0, -0.375, 0.0, 0.0, 0.0));
}

}  // namespace
}  // namespace tessera::engine
