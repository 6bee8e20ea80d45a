// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 21600
// Every combination. tools/equivalence_table.sh makes docs/combinations.md of it.
#include "equivalence/combinations.h"

namespace tessera::testing {
namespace {

TEST(WholeCombinations, EqualOneRankOrAreRefused) {
  const std::vector<CombinationResult> results = train_all(all_combinations());

  if (combinations_file().empty()) return;
  std::ofstream out(combinations_file());
  write_layouts(out, results);
  EXPECT_TRUE(out.good()) << combinations_file();
}

}  // namespace
}  // namespace tessera::testing
