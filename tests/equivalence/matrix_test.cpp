// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// A selection of the matrix that contains every pair of values; matrix_whole_test.cpp runs all of
// it.
#include "equivalence/matrix.h"

namespace tessera::test {
namespace {

TEST(Matrix, EveryPairOfValuesAgreesToTheBit) {
  const std::vector<Cell> cells = covering(whole_matrix());
  // At least as many cells as there are pairs of the two largest dimensions.
  ASSERT_GE(cells.size(), exact_rules().size() * kRanks.size());
  for (const Cell& cell : cells) {
    for (const std::string& difference : differences(cell))
      ADD_FAILURE() << difference;
  }
}

}  // namespace
}  // namespace tessera::test
