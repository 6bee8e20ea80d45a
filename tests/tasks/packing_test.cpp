// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/packing.h"

#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::tasks {
namespace {

using Samples = std::vector<PackedSample>;

TEST(Packing, FirstFitTakesTheFirstSampleThatHasTheRoom) {
  // Sorted: 6 5 4 3 2 2; samples of 8: 6+2, 5+3, 4+2.
  EXPECT_EQ(pack({2, 6, 4, 2, 5, 3}, 8, Packing::FirstFit),
            (Samples{{{1, 0, 6}, {0, 0, 2}}, {{4, 0, 5}, {5, 0, 3}}, {{2, 0, 4}, {3, 0, 2}}}));
}

TEST(Packing, BestFitTakesTheSampleWithTheLeastRoom) {
  // Sorted: 6 5 3 2; the 2 is put into the row with room for 2, not into the first row with enough
  // room.
  EXPECT_EQ(pack({5, 6, 3, 2}, 9, Packing::BestFit),
            (Samples{{{1, 0, 6}, {2, 0, 3}}, {{0, 0, 5}, {3, 0, 2}}}));
}

TEST(Packing, InOrderOpensANewSampleWhereTheNextTextHasNoRoom) {
  EXPECT_EQ(pack({2, 0, 3, 4, 9}, 5, Packing::InOrder),
            (Samples{{{0, 0, 2}, {2, 0, 3}}, {{3, 0, 4}}, {{4, 0, 5}}}));
}

TEST(Packing, NoneMakesASampleOfEachTextThatHasTokens) {
  EXPECT_EQ(pack({2, 0, 9}, 5, Packing::None), (Samples{{{0, 0, 2}}, {{2, 0, 5}}}));
}

class PackingKinds : public ::testing::TestWithParam<Packing> {};

TEST_P(PackingKinds, UsesEachTokenOnceAndNoSampleIsTooLong) {
  constexpr std::int64_t kLength = 37;
  std::mt19937 random(5);
  std::vector<std::int64_t> lengths(500);
  for (std::int64_t& length : lengths)
    length = static_cast<std::int64_t>(random() % 90);
  const bool whole = GetParam() == Packing::BestFitSplit || GetParam() == Packing::Wrapped;

  const Samples samples = pack(lengths, kLength, GetParam());

  std::vector<std::vector<int>> used(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i)
    used[i].resize(static_cast<std::size_t>(lengths[i]));
  for (const PackedSample& sample : samples) {
    std::int64_t tokens = 0;
    for (const Piece& piece : sample) {
      EXPECT_GT(piece.size(), 0);
      tokens += piece.size();
      for (std::int64_t t = piece.begin; t < piece.end; ++t)
        ++used[static_cast<std::size_t>(piece.text)][static_cast<std::size_t>(t)];
    }
    EXPECT_LE(tokens, kLength);
    EXPECT_GT(tokens, 0);
  }
  for (const std::vector<int>& text : used) {
    for (std::size_t t = 0; t < text.size(); ++t)
      EXPECT_EQ(text[t], whole || t < kLength ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         PackingKinds,
                         ::testing::Values(Packing::None,
                                           Packing::BestFit,
                                           Packing::BestFitSplit,
                                           Packing::FirstFit,
                                           Packing::InOrder,
                                           Packing::Wrapped));

}  // namespace
}  // namespace tessera::tasks
