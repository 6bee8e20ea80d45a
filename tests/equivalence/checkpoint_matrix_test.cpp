// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A selection of layouts that save and layouts that load in which each saves and each loads twice.
#include "equivalence/checkpoint_matrix.h"

namespace tessera::testing {
namespace {

TEST(CheckpointMatrix, EveryLayoutSavesTheSameTensors) {
  SavedRuns runs;
  const auto layouts = saved_layouts();

  for (const Layout& layout : layouts) {
    if (layout.tensor == 1) {
      EXPECT_EQ(runs.digest_of(layout), runs.digest_of(layouts.front())) << name_of(layout);
    }
    EXPECT_EQ(runs.digest_of(layout).size(), runs.digest_of(layouts.front()).size());
  }

  EXPECT_GE(layouts.size(), 12U);
  EXPECT_GT(runs.digest_of(layouts.front()).size(), 30U);
}

TEST(CheckpointMatrix, ARunGoesOnInAnotherLayoutAsIfNothingHadHappened) {
  SavedRuns runs;
  const auto layouts = saved_layouts();

  // Steps of 5 and 11 through the layouts meet every one of them, each time beside another.
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    runs.expect_equal(layouts[i], layouts[(i + 5) % layouts.size()]);
    runs.expect_equal(layouts[i], layouts[(i + 11) % layouts.size()]);
  }
}

}  // namespace
}  // namespace tessera::testing
