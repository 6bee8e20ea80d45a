// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 43200
// Every combination; before, every pair of values on two hosts. tools/equivalence_table.sh
// combinations --whole shows each layout of them.
#include <set>

#include "equivalence/combinations_table.h"

namespace tessera::test {
namespace {

// hosts_test.cpp has every value.
TEST(WholeCombinationsOnTwoHosts, OfEveryPairOfValuesEqualOneRank) {
  std::vector<Combination> cells = selection(2);
  std::erase_if(cells, [](const Combination& cell) { return cell.is_refused(); });
  ASSERT_GT(cells.size(), 30U);

  train_all(cells, /*two_hosts=*/true);
}

TEST(WholeCombinations, EqualOneRankOrAreRefused) {
  const std::vector<CombinationResult> results = train_all(all_combinations());

  if (combinations_file().empty()) return;
  std::set<std::string> shown;
  for (const Combination& cell : selection(kTableStrength))
    shown.insert(cell.text());
  std::vector<CombinationResult> rows;
  for (const CombinationResult& result : results) {
    if (shown.contains(result.cell.text())) rows.push_back(result);
  }
  std::sort(rows.begin(), rows.end(), [](const CombinationResult& a, const CombinationResult& b) {
    return a.cell.index < b.cell.index;
  });
  std::ofstream out(combinations_file());
  write_summary(out, results);
  write_layouts(out, results);
  out << "\nAs many as show any three values together:\n\n";
  write_cells(out, rows);
  EXPECT_TRUE(out.good()) << combinations_file();
}

}  // namespace
}  // namespace tessera::test
