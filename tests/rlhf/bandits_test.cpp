// SPDX-License-Identifier: Apache-2.0
// labels: slow
// An algorithm without a critic and one with a critic find the best policy of a bandit;
// rl_bandits_whole_test.cpp has every algorithm.
#include "rlhf/bandits.h"

namespace tessera::test {
namespace {

TEST(RlBandits, WithoutAndWithACriticEndWithTheBestPolicy) {
  int found = 0;
  for (const Bandit& bandit : bandits()) {
    if (bandit.name != "dr_grpo" && bandit.name != "ppo") continue;
    expect_best_policy(bandit, /*seed=*/5);
    ++found;
  }
  EXPECT_EQ(found, 2);
}

}  // namespace
}  // namespace tessera::test
