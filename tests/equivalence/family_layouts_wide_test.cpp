// SPDX-License-Identifier: Apache-2.0
// labels: wide
// timeout: 900
// Every pair of a family with a way of being spread; family_layouts_test.cpp has a selection of
// them.
#include "equivalence/family_layouts.h"

namespace tessera::test {
namespace {

TEST(WideFamilyLayouts, OfEveryPairOfValuesEqualOneRankOrAreRefused) {
  expect_family_cells(family_pairs());
}

}  // namespace
}  // namespace tessera::test
