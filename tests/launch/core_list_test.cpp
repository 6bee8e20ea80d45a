// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/core_list.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using testing::ElementsAre;

TEST(CoreList, ReadsNumbersAndRanges) {
  EXPECT_THAT(parse_core_list("1,3-5,7", "--bind_core_list"), ElementsAre(1, 3, 4, 5, 7));
}

TEST(CoreList, RefusesInvalidInput) {
  for (const char* list : {"", "a", "1-", "-1", "5-3", "1,1", "1-3,2", "9999999999", "1048576"})
    EXPECT_THROW(parse_core_list(list, "--bind_core_list"), Error) << list;
}

TEST(CoreList, IsSharedEqually) {
  const std::vector<int> cores = {1, 3, 4, 5, 7};

  EXPECT_THAT(equal_share(cores, 0, 2), ElementsAre(1, 3));
  EXPECT_THAT(equal_share(cores, 1, 2), ElementsAre(4, 5));
  EXPECT_THROW(equal_share(cores, 0, 6), Error);
}

}  // namespace
}  // namespace tessera::launch
