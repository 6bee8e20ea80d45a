// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which rank transforms which whole tensor.
#include "tessera/parallel/whole_tensors.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

TEST(BalancedOwners, GiveTheMostExpensiveTaskFirstToTheRankWithTheLeastToDo) {
  // 8 to rank 0, 7 to rank 1, 6 to rank 1 (7 < 8), 5 to rank 0, 4 to rank 0 (13 = 13: the lower).
  EXPECT_EQ(balanced_owners(std::vector<double>{5, 8, 4, 7, 6}, 2),
            (std::vector<int>{0, 0, 0, 1, 1}));
}

TEST(BalancedOwners, KeepTheOrderOfEqualTasks) {
  EXPECT_EQ(balanced_owners(std::vector<double>{3, 3, 3, 3}, 3), (std::vector<int>{0, 1, 2, 0}));
}

TEST(BalancedOwners, AreOneRankWhereThereIsOne) {
  EXPECT_EQ(balanced_owners(std::vector<double>{1, 2}, 1), (std::vector<int>{0, 0}));
  EXPECT_TRUE(balanced_owners({}, 4).empty());
}

}  // namespace
}  // namespace tessera::parallel
