// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 600
// Every cell of the matrix of optimizers that exchange signs.
#include "equivalence/compressed_matrix.h"

namespace tessera::test {
namespace {

TEST(WholeCompressedMatrix, GivesTheSameBitsInStages0And1) {
  expect_compressed_cells(all_compressed_cells());
}

}  // namespace
}  // namespace tessera::test
