// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
#include "equivalence/family_layouts.h"

namespace tessera::test {
namespace {

/// One cell with an adapter for each family: data parallelism with ZeRO, tensor parallelism and
/// pipelines, one after the other.
std::vector<FamilyCell> adapted_family_cells() {
  std::vector<FamilyCell> out;
  std::set<std::string> families;
  for (std::size_t row = 0; row < family_rows().size(); ++row) {
    if (!families.insert(family_rows()[row].family).second) continue;
    FamilyCell cell{.index = {row}, .adapted = true};
    const std::size_t number = out.size();
    if (number % 3 == 0) cell.index[4] = 1 + number / 3 % 2;  // 2 or 4 data ranks
    if (number % 3 == 0) cell.index[5] = 1 + number / 3 % 3;  // ZeRO 1 to 3
    if (number % 3 == 1) cell.index[1] = 1;                   // tensor 1d
    if (number % 3 == 2) cell.index[3] = 1;                   // two stages
    out.push_back(cell);
  }
  return out;
}

TEST(FamilyLayouts, AreTestedForEveryFamily) {
  std::set<std::string> tested;
  for (const FamilyRow& row : family_rows())
    tested.insert(row.family);

  for (const std::string& family : models::families().names())
    EXPECT_TRUE(tested.contains(family)) << "give " << family << " a row in family_layouts.h";
}

TEST(FamilyLayouts, OfASelectionEqualOneRankOrAreRefused) {
  expect_family_cells(family_selection());
}

// Five tokens of an image: with four ranks, a ring leaves a rank without any.
TEST(FamilyLayouts, OfImagesWhoseTokensDoNotDivideEqualOneRank) {
  for (const FamilyRow& row : family_rows()) {
    if (row.task != "image_classify") continue;
    SCOPED_TRACE(row.name);
    expect_same(run_of(row),
                {{.ranks = 4, .accumulation = 2, .context = 4, .context_mode = "ring"},
                 {.ranks = 4, .accumulation = 2, .context = 4, .context_mode = "ulysses"},
                 {.ranks = 4, .accumulation = 2, .tensor = 4, .sequence = true},
                 {.ranks = 4, .accumulation = 2, .tensor = 2, .sequence = true, .context = 2}},
                {.gradient = 2 * kGradient});
  }
}

TEST(FamilyLayouts, WithAnAdapterEqualOneRank) {
  expect_family_cells(adapted_family_cells());
}

}  // namespace
}  // namespace tessera::test
