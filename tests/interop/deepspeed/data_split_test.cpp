// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/data_split.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::interop {
namespace {

using testing::ElementsAre;

// Answers of numpy 2's RandomState(seed).shuffle, cut as DeepSpeed-Chat cuts it.
TEST(ChatPart, IsThatOfDeepSpeedChat) {
  EXPECT_THAT(chat_part({2, 4, 4}, 0, 1234, 23), ElementsAre(7, 13, 2, 3, 1));
  EXPECT_THAT(chat_part({2, 4, 4}, 1, 1234, 23), ElementsAre(16, 5, 4, 0, 8, 20, 18, 21, 11));
  EXPECT_THAT(chat_part({2, 4, 4}, 2, 1234, 23), ElementsAre(14, 10, 9, 17, 22, 12, 6, 19, 15));
  EXPECT_THAT(chat_part({1, 1, 1}, 1, 7, 10), ElementsAre(1, 9, 7));
  const std::vector<std::uint32_t> large = chat_part({2, 4, 4}, 1, 1234, 76256);
  EXPECT_THAT(std::vector(large.begin(), large.begin() + 5),
              ElementsAre(68187, 59458, 11718, 45307, 24625));
  EXPECT_EQ(std::accumulate(large.begin(), large.end(), std::uint64_t{0}) % 1000003, 540991U);
}

// Answers of numpy 2, divided as DeepSpeed-Chat divides data sets that have a split "train" alone.
TEST(ChatPart, OfOneSplitDividesNineTenthsAndATenth) {
  using enum ChatRecords;
  EXPECT_THAT(chat_part(Training, {2, 4, 4}, 0, 1234, 43), ElementsAre(10, 15, 17, 14, 39, 5, 3));
  EXPECT_THAT(chat_part(Training, {2, 4, 4}, 1, 1234, 43),
              ElementsAre(0, 20, 6, 8, 21, 42, 1, 25, 37, 35, 9, 41, 11, 30, 27, 34));
  EXPECT_THAT(chat_part(Evaluation, {2, 4, 4}, 0, 1234, 43), ElementsAre());
  EXPECT_THAT(chat_part(Evaluation, {2, 4, 4}, 1, 1234, 43), ElementsAre(24, 12));
  EXPECT_THAT(chat_part(Evaluation, {2, 4, 4}, 2, 1234, 43), ElementsAre(38, 19));
  EXPECT_EQ(chat_part(All, {2, 4, 4}, 1, 1234, 43), chat_part({2, 4, 4}, 1, 1234, 43));
}

TEST(ChatPart, PartsHaveEachRecordOnce) {
  for (const std::uint32_t size : {1U, 2U, 7U, 100U, 1001U}) {
    std::vector<std::uint32_t> all;
    for (const std::size_t part : {0, 1, 2}) {
      const std::vector<std::uint32_t> one = chat_part({3, 1, 2}, part, 5, size);
      all.insert(all.end(), one.begin(), one.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::uint32_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0U);
    // Where rounding gives too much, DeepSpeed-Chat moves every end by the same number.
    EXPECT_LE(all.size(), size);
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end()) << size;
    EXPECT_TRUE(std::includes(expected.begin(), expected.end(), all.begin(), all.end()));
  }
}

}  // namespace
}  // namespace tessera::interop
