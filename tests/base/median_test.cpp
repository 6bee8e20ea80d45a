// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/median.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Medians, AreTheMiddleOrTheUpperOfTwo) {
  EXPECT_EQ(median_of({5, 1, 100}), 5);
  EXPECT_EQ(median_of({4, 1, 3, 2}), 3);
  EXPECT_EQ(median_of({7}), 7);
  EXPECT_EQ(median_of({}), 0);
}

}  // namespace
}  // namespace tessera
