// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint::test {
namespace {

constexpr int kRanks = 5;

/// Returns `ranks`, which add their collectives to `count`.
Ranks counting(const Ranks& ranks, int& count) {
  Ranks counted = ranks;
  counted.largest = [largest = ranks.largest, &count](std::vector<std::uint32_t> mine) {
    ++count;
    return largest(std::move(mine));
  };
  return counted;
}

TEST(Consensus, BroadcastsAllBitsOfANumber) {
  constexpr std::uint64_t kValue = 0xFEDCBA9876543210;
  on_ranks(kRanks, [&](const Ranks& ranks) {
    const std::uint64_t mine = ranks.rank == 3 ? kValue : ~std::uint64_t{0};
    EXPECT_EQ(broadcast(ranks, 3, mine), kValue);
  });
}

TEST(Consensus, BroadcastsTextsOfAnyBytes) {
  const std::string text = "no space left \xC3\xA9 \xFF\x01";
  on_ranks(kRanks, [&](const Ranks& ranks) {
    EXPECT_EQ(broadcast(ranks, 1, ranks.rank == 1 ? text : "another, longer than the root's"),
              text);
    EXPECT_EQ(broadcast(ranks, 1, std::string(ranks.rank == 1 ? "" : "mine")), "");
    EXPECT_EQ(broadcast(ranks, 1, std::string(2000, 'x')), std::string(1000, 'x'));
  });
}

TEST(Consensus, FindsTheLargestOfNumbersWithEqualHalves) {
  const std::vector<std::optional<std::uint64_t>> numbers = {
      0x0000000200000001, 0x00000001FFFFFFFF, std::nullopt, 0x0000000200000007, 0};
  on_ranks(kRanks, [&](const Ranks& ranks) {
    EXPECT_EQ(largest(ranks, numbers[static_cast<std::size_t>(ranks.rank)]), 0x0000000200000007U);
    EXPECT_EQ(largest(ranks, std::nullopt), 0U);
  });
}

/// A failure over a slow network must not take longer than a few of its round trips.
TEST(Consensus, AllRanksThrowTheErrorOfTheLowestThatFailedAfterEightCollectives) {
  on_ranks(kRanks, [&](const Ranks& ranks) {
    int collectives = 0, undone = 0;
    const Ranks counted = counting(ranks, collectives);
    try {
      run_together(
          counted,
          [&] {
            if (ranks.rank < 2) return;
            throw Error(Error::Kind::Io, "rank " + std::to_string(ranks.rank), "free the disk");
          },
          [&] { ++undone; });
      ADD_FAILURE() << "rank " << ranks.rank << " threw nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Io);
      EXPECT_STREQ(error.what(), "rank 2");
      EXPECT_EQ(error.fix(), "free the disk");
    }
    EXPECT_EQ(undone, 1);
    EXPECT_LE(collectives, 8);
  });
}

TEST(Consensus, SuccessTakesOneCollective) {
  on_ranks(kRanks, [&](const Ranks& ranks) {
    int collectives = 0;
    run_together(
        counting(ranks, collectives), [] {}, [] { ADD_FAILURE() << "undone"; });
    EXPECT_EQ(collectives, 1);
  });
}

}  // namespace
}  // namespace tessera::checkpoint::test
