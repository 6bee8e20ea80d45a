// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A world of the maximum number of ranks, all in one group.
#include <gtest/gtest.h>

#include "tessera/base/control_page.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

// Every round reduces the sum of (rank + round).
void reduce(int ranks, int rounds) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "hundreds of threads take the thread sanitizer minutes";
#endif
  run_threads(ranks, [&](World& world) {
    for (int round = 0; round < rounds; ++round) {
      const double mine = world.rank() + round;
      const double sum =
          world.all_reduce(world.everyone(), {mine}, Op::Sum, TESSERA_HERE("sum"))[0];
      ASSERT_EQ(sum, ranks * (ranks - 1) / 2.0 + static_cast<double>(ranks) * round);
    }
  });
}

TEST(LargeWorld, HasOneGroupOfAllItsRanks) {
  reduce(kMostRanks, 1);
}

// A ring has 64 slots; each is reused only once all members are done with it.
TEST(LargeWorld, UsesSlotsAgainWhenHundredsOfMembersAreDone) {
  reduce(260, 66);
}

}  // namespace
}  // namespace tessera::comm
