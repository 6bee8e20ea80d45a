// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// A selection of the matrix that contains every pair of values, those of the layouts that are
// compared among them; matrix_whole_test.cpp runs all of it.
#include "equivalence/matrix.h"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace tessera::test {
namespace {

/// A cell and one of the layouts that it is compared with.
struct ComparedCell {
  static constexpr std::size_t kDimensions = Cell::kDimensions + 1;
  Cell cell;
  std::array<std::size_t, kDimensions> index{};
  [[nodiscard]] std::size_t other() const { return index.back(); }
};

std::vector<ComparedCell> compared_cells() {
  std::vector<ComparedCell> out;
  for (const Cell& cell : whole_matrix()) {
    for (std::size_t other = 0; other < kOtherLayouts.size(); ++other) {
      ComparedCell next{.cell = cell};
      std::ranges::copy(cell.index, next.index.begin());
      next.index.back() = other;
      out.push_back(next);
    }
  }
  return out;
}

TEST(Matrix, EveryPairOfValuesAgreesToTheBit) {
  const std::vector<ComparedCell> cells = covering(compared_cells());
  // At least as many cells as there are pairs of the two largest dimensions.
  ASSERT_GE(cells.size(), exact_rules().size() * kOtherLayouts.size());
  for (const ComparedCell& compared : cells) {
    for (const std::string& difference : differences(compared.cell, {compared.other()}))
      ADD_FAILURE() << difference;
  }
}

}  // namespace
}  // namespace tessera::test
