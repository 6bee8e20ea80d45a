// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 3600
// A selection of the combinations that contains every possible tuple of values of any three
// dimensions. tools/equivalence_table.sh makes docs/tables/combinations.md from it.
#include "equivalence/combinations_table.h"

namespace tessera::test {
namespace {

TEST(CombinationsTable, OfAnyThreeValuesEqualOneRankOrAreRefused) {
  static_assert(kTableStrength == 3);

  const std::vector<CombinationResult> results = train_all(selection(kTableStrength));

  if (combinations_file().empty()) return;
  std::ofstream out(combinations_file());
  write_summary(out, results);
  write_cells(out, results);
  EXPECT_TRUE(out.good()) << combinations_file();
}

}  // namespace
}  // namespace tessera::test
