// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 3600
// Every cell of the matrix. tools/equivalence_table.sh makes docs/tables/equivalence.md from it.
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/matrix.h"

namespace tessera::test {
namespace {

TEST(WholeMatrix, AgreesToTheBit) {
  // For each optimizer and precision: the number of cells that agree, and of all cells.
  std::map<std::pair<std::string, std::string>, std::pair<int, int>> table;
  std::vector<std::size_t> all_layouts(kOtherLayouts.size());
  std::iota(all_layouts.begin(), all_layouts.end(), 0U);
  for (const Cell& cell : whole_matrix()) {
    const std::vector<std::string> found = differences(cell, all_layouts);
    for (const std::string& difference : found)
      ADD_FAILURE() << difference;
    auto& [equal, all] = table[{cell.optimizer, cell.precision()}];
    equal += found.empty() ? 1 : 0;
    ++all;
  }
  const char* const path = std::getenv("TESSERA_EQUIVALENCE_TABLE");
  if (path == nullptr) return;
  std::ofstream out(path);
  out << "| optimizer |";
  for (const char* precision : kPrecisions)
    out << ' ' << precision << " |";
  out << "\n|---|---|---|---|\n";
  for (const std::string& optimizer : exact_rules()) {
    out << "| " << optimizer << " |";
    for (const char* precision : kPrecisions) {
      const auto& [equal, all] = table[{optimizer, precision}];
      out << ' ' << equal << " of " << all << " |";
    }
    out << '\n';
  }
  EXPECT_TRUE(out.good()) << path;
}

}  // namespace
}  // namespace tessera::test
