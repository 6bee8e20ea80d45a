// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 1800
// The combinations of combinations_test.cpp with their ranks on two hosts: what they promise does
// not depend on where the ranks are.
#include <vector>

#include "equivalence/combinations.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TEST(CombinationsOnTwoHosts, OfEveryPairOfValuesEqualOneRank) {
  std::vector<Combination> cells = selection(2);
  std::erase_if(cells, [](const Combination& cell) { return cell.is_refused(); });
  ASSERT_GT(cells.size(), 30U);

  train_all(cells, /*two_hosts=*/true);
}

}  // namespace
}  // namespace tessera::test
