// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 3600
// Every layout that saves with every layout that loads.
#include "equivalence/checkpoint_matrix.h"

namespace tessera::test {
namespace {

TEST(CheckpointMatrixWhole, ARunContinuesInAnyLayoutAsIfNothingHadHappened) {
  SavedRuns runs;

  for (const Layout& save : saved_layouts()) {
    for (const Layout& load : saved_layouts())
      runs.expect_equal(save, load);
  }
}

}  // namespace
}  // namespace tessera::test
