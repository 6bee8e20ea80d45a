// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The rounds in which owners of experts take rows: each row once, and never more than a bound.
#include "tessera/nn/expert_rounds.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/mesh/shard_spec.h"

namespace tessera::nn {
namespace {

using Counts = std::vector<std::int64_t>;  // [S, E]

/// Rows of `tokens` tokens of every source that choose `top_k` different experts, by `draw`.
template <class Draw>
Counts counts_of(int sources, std::int64_t experts, std::int64_t tokens, int top_k, Draw draw) {
  Counts out(static_cast<std::size_t>(sources * experts), 0);
  for (int source = 0; source < sources; ++source) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::vector<std::int64_t> chosen;
      while (static_cast<int>(chosen.size()) < top_k) {
        const std::int64_t expert = draw(source, token, static_cast<int>(chosen.size()));
        if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end())
          chosen.push_back(expert);
      }
      for (const std::int64_t expert : chosen)
        ++out[static_cast<std::size_t>(source * experts + expert)];
    }
  }
  return out;
}

/// Checks what every rank of a group relies on.
void expect_sound(const Counts& counts, int sources) {
  const auto E = static_cast<std::int64_t>(counts.size()) / sources;
  std::int64_t most_of_source = 0;
  for (int s = 0; s < sources; ++s) {
    const auto row = counts.begin() + s * E;
    most_of_source = std::max(most_of_source, std::accumulate(row, row + E, std::int64_t{0}));
  }
  const std::int64_t bound =
      rows_of_round(E, sources, most_of_source, *std::max_element(counts.begin(), counts.end()));
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows_of_unit;
  std::size_t rounds = 0;
  for (int rank = 0; rank < sources; ++rank) {
    const std::vector<ExpertRound> mine = rounds_of(counts, sources, rank);
    if (rank == 0) rounds = mine.size();
    ASSERT_EQ(mine.size(), rounds) << "all ranks take part in every round";
    const std::int64_t first = mesh::even_cut(E, 1, sources, rank).first;
    const std::int64_t all = std::accumulate(
        counts.begin() + rank * E, counts.begin() + (rank + 1) * E, std::int64_t{0});
    std::vector<bool> sent(static_cast<std::size_t>(all), false);
    for (const ExpertRound& round : mine) {
      EXPECT_LE(round.rows, bound);
      std::int64_t at = 0;
      for (const ExpertUnit& unit : round.units) {
        EXPECT_EQ(unit.begin, at);
        at += unit.rows;
        rows_of_unit[{unit.source, first + unit.expert}] += unit.rows;
      }
      EXPECT_EQ(at, round.rows);
      std::int64_t coming = 0;
      for (int s = 0; s < sources; ++s)
        coming += round.parts[static_cast<std::size_t>(s * sources + rank)];
      EXPECT_EQ(coming, round.rows);
      for (int owner = 0; owner < sources; ++owner) {
        const auto [begin, count] = round.sent[static_cast<std::size_t>(owner)];
        EXPECT_EQ(count, round.parts[static_cast<std::size_t>(rank * sources + owner)]);
        for (std::int64_t row = begin; row < begin + count; ++row) {
          EXPECT_FALSE(sent[static_cast<std::size_t>(row)]) << "row " << row << " is sent twice";
          sent[static_cast<std::size_t>(row)] = true;
        }
      }
    }
    EXPECT_EQ(std::count(sent.begin(), sent.end(), true), all) << "every row is sent";
  }
  for (int s = 0; s < sources; ++s) {
    for (std::int64_t e = 0; e < E; ++e)
      EXPECT_EQ((rows_of_unit[{s, e}]), counts[static_cast<std::size_t>(s * E + e)]);
  }
}

TEST(ExpertRounds, SendEveryRowOnceWithinTheBoundHoweverTokensFall) {
  std::mt19937 random(7);
  for (const int sources : {1, 2, 3, 4, 8}) {
    for (const std::int64_t experts :
         {std::int64_t{1}, std::int64_t{5}, std::int64_t{8}, std::int64_t{13}}) {
      if (experts < sources) continue;
      for (const int top_k : {1, 2, 5}) {
        if (top_k > experts) continue;
        SCOPED_TRACE(std::to_string(sources) + " sources, " + std::to_string(experts) +
                     " experts, top " + std::to_string(top_k));
        expect_sound(counts_of(sources,
                               experts,
                               40,
                               top_k,
                               [&](int, std::int64_t, int) {
                                 return static_cast<std::int64_t>(
                                     random() % static_cast<std::uint64_t>(experts));
                               }),
                     sources);
        // All tokens choose the first experts.
        expect_sound(
            counts_of(sources, experts, 40, top_k, [](int, std::int64_t, int k) { return k; }),
            sources);
      }
    }
  }
}

TEST(ExpertRounds, AreOneForEqualLoads) {
  const auto in_turn = [](int, std::int64_t token, int k) { return (token * 2 + k) % 8; };
  for (const int sources : {1, 2, 4, 8})
    EXPECT_EQ(rounds_of(counts_of(sources, 8, 40, 2, in_turn), sources, 0).size(), 1U) << sources;
}

TEST(ExpertRounds, OfOneExpertForAllTokensOfFourRanksAreSeveral) {
  const Counts all = counts_of(4, 8, 100, 1, [](int, std::int64_t, int) { return 0; });

  const std::vector<ExpertRound> rounds = rounds_of(all, 4, 0);

  // 400 rows for one owner, of which it takes at most 200 at a time: those of two sources.
  EXPECT_EQ(rows_of_round(8, 4, 100, 100), 200);
  ASSERT_EQ(rounds.size(), 2U);
  EXPECT_EQ(rounds[0].rows, 200);
  EXPECT_EQ(rounds[1].rows, 200);
}

TEST(ExpertRounds, WithoutTokensAreOneThatIsEmpty) {
  const std::vector<ExpertRound> rounds = rounds_of(Counts(15, 0), 3, 1);

  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_EQ(rounds[0].rows, 0);
  EXPECT_TRUE(rounds[0].units.empty());
}

}  // namespace
}  // namespace tessera::nn
