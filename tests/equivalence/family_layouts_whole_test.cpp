// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 7200
#include "equivalence/family_layouts.h"

namespace tessera::test {
namespace {

TEST(WholeFamilyLayouts, EqualOneRankOrAreRefused) {
  expect_family_cells(all_family_cells());
}

}  // namespace
}  // namespace tessera::test
