// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/bpe.h"

#include <map>
#include <random>

#include "support/text_files.h"
#include <gtest/gtest.h>

namespace tessera::text {
namespace {

using Ids = std::vector<std::int32_t>;

/// The definition: as long as there is a known pair, merge the leftmost of lowest rank.
Ids merge_by_definition(Ids ids, const std::vector<BpeModel::Merge>& merges) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < merges.size(); ++rank)
    ranks[{merges[rank].left, merges[rank].right}] = rank;
  for (;;) {
    std::size_t best = ids.size(), best_rank = merges.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second < best_rank) {
        best = i;
        best_rank = it->second;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Over four letters, so that merges overlap and chain a lot.
std::vector<BpeModel::Merge> random_merges(std::mt19937& random) {
  std::vector<BpeModel::Merge> merges;
  std::int32_t known = 4;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> seen;
  for (int i = 0; i < 30; ++i) {
    const auto left = static_cast<std::int32_t>(random() % known),
               right = static_cast<std::int32_t>(random() % known);
    if (seen[{left, right}]) continue;
    seen[{left, right}] = true;
    merges.push_back({left, right, known++});
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(BpeMerger, FollowsTheDefinitionWithScanAndHeap) {
  std::mt19937 random(7);

  for (int round = 0; round < 200; ++round) {
    const auto merges = random_merges(random);
    const PairTable pairs(merges);
    BpeMerger merger(pairs);
    const std::size_t length =
        round % 2 == 0 ? random() % BpeMerger::kHeapFrom : BpeMerger::kHeapFrom + random() % 200;
    Ids symbols(length);
    for (auto& symbol : symbols)
      symbol = static_cast<std::int32_t>(random() % 4);

    const auto merged = merger.merge(symbols);

    ASSERT_EQ(Ids(merged.begin(), merged.end()), merge_by_definition(symbols, merges))
        << "length " << length;
  }
}

TEST(BpeMerger, LeavesAloneWhatHasNoPair) {
  const PairTable pairs({{1, 2, 3}});
  BpeMerger merger(pairs);

  const Ids one(merger.merge(Ids{5}).begin(), merger.merge(Ids{5}).end());
  const auto none = merger.merge(Ids{});

  EXPECT_EQ(one, Ids{5});
  EXPECT_TRUE(none.empty());
}

TEST(PairTable, FindsEveryPairAndNoOther) {
  std::mt19937 random(3);
  std::vector<BpeModel::Merge> merges;
  for (std::int32_t i = 0; i < 5000; ++i)
    merges.push_back({i, i * 7 % 5001, i + 10000});
  const PairTable pairs(merges);

  for (std::int32_t i = 0; i < 5000; ++i) {
    EXPECT_EQ(pairs.find(i, i * 7 % 5001).rank, static_cast<std::uint32_t>(i));
    EXPECT_EQ(pairs.find(i, 6000 + i).rank, PairTable::kNone);
  }
}

TEST(PairTable, IsEmptyWithoutMerges) {
  EXPECT_EQ(PairTable(std::vector<BpeModel::Merge>{}).find(1, 2).rank, PairTable::kNone);
}

}  // namespace
}  // namespace tessera::text
