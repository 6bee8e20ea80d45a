// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// A selection of layouts that save and layouts that load in which each does both.
#include "equivalence/checkpoint_matrix.h"

#include <set>

namespace tessera::test {
namespace {

/// Returns names, types and shapes of a digest.
std::vector<std::string> tensors_of(const std::vector<std::string>& digest) {
  std::vector<std::string> out;
  for (const std::string& line : digest)
    out.push_back(line.substr(0, line.rfind(' ')));
  return out;
}

/// Shared by the tests of a process: each layout trains and saves once.
SavedRuns& runs_of_all_tests() {
  static SavedRuns runs;
  return runs;
}

TEST(CheckpointMatrix, EveryLayoutSavesTheSameTensors) {
  SavedRuns& runs = runs_of_all_tests();
  const auto layouts = saved_layouts();

  for (const Layout& layout : layouts) {
    EXPECT_EQ(tensors_of(runs.digest_of(layout)), tensors_of(runs.digest_of(layouts.front())));
    EXPECT_EQ(runs.digest_of(layout), runs.digest_of(first_of_its_sums(layout))) << name_of(layout);
  }

  EXPECT_GE(layouts.size(), 30U);
  EXPECT_GT(runs.digest_of(layouts.front()).size(), 30U);
}

TEST(CheckpointMatrix, LayoutsHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Layout& layout : saved_layouts())
    names.insert(name_of(layout));

  EXPECT_EQ(names.size(), saved_layouts().size());
}

TEST(CheckpointMatrix, ARunContinuesInAnotherLayoutAsIfNothingHadHappened) {
  SavedRuns& runs = runs_of_all_tests();
  const auto layouts = saved_layouts();

  // Each layout loads what the one 11 places before it saved: so each both saves and loads, mostly
  // with a layout of another kind.
  for (std::size_t i = 0; i < layouts.size(); ++i)
    runs.expect_equal(layouts[i], layouts[(i + 11) % layouts.size()]);
}

}  // namespace
}  // namespace tessera::test
