// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
#include "equivalence/family_layouts.h"

namespace tessera::test {
namespace {

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

}  // namespace
}  // namespace tessera::test
