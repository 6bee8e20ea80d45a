// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 900
// A selection of the combinations in which every pair of values stands together;
// combinations_whole_test.cpp runs all of them.
#include "equivalence/combinations.h"

namespace tessera::testing {
namespace {

TEST(Combinations, OfEveryPairOfValuesEqualOneRankOrAreRefused) {
  const std::vector<Combination> cells = covering(all_combinations());
  // As many as the two largest dimensions have pairs, at least.
  ASSERT_GE(cells.size(), (Combination::kSchedules.size() - 1) * Combination::kZero.size());

  const std::vector<CombinationResult> results = train_all(cells);

  if (combinations_file().empty()) return;
  std::ofstream out(combinations_file());
  write_cells(out, results);
  EXPECT_TRUE(out.good()) << combinations_file();
}

// The selection leaves out none of what it says it covers.
TEST(Combinations, OfTheSelectionHaveEveryPairOfValuesOfTheWhole) {
  const std::vector<Combination> all = all_combinations();
  const std::vector<Combination> chosen = covering(all);
  const auto stands_together = [&](std::size_t a, std::size_t b, const Combination& cell) {
    return std::any_of(chosen.begin(), chosen.end(), [&](const Combination& other) {
      return other.index[a] == cell.index[a] && other.index[b] == cell.index[b];
    });
  };

  EXPECT_GT(all.size(), 1000U);
  EXPECT_LT(chosen.size(), 100U);
  for (std::size_t c = 0; c < all.size(); c += 7) {
    for (std::size_t a = 0; a < Combination::kDimensions; ++a) {
      for (std::size_t b = a + 1; b < Combination::kDimensions; ++b)
        ASSERT_TRUE(stands_together(a, b, all[c])) << all[c].text();
    }
  }
}

}  // namespace
}  // namespace tessera::testing
