// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 1200
// Every algorithm of the task rl finds the best policy of a bandit, with several seeds.
#include "rlhf/bandits.h"

namespace tessera::test {
namespace {

TEST(WholeRlBandits, EndWithTheBestPolicy) {
  for (const Bandit& bandit : bandits()) {
    for (const int seed : {5, 6, 7})
      expect_best_policy(bandit, seed);
  }
}

}  // namespace
}  // namespace tessera::test
