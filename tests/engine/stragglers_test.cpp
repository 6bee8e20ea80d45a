// SPDX-License-Identifier: Apache-2.0
// The rank or host that is reported as slow. The times are made up; real ones:
// tests/cli/survive_test.sh.
#include "tessera/engine/stragglers.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::engine {
namespace {

constexpr double kPeriod = 2.0;

/// The times of a rank that computes for one second, of which these are forward and backward.
RankTimes rank_with(double forward, double backward) {
  return {{0.01, forward, backward, 0.05}, 0.06 + forward + backward};
}

/// Returns the straggler that is reported within `periods` periods of these times.
std::optional<Straggler> told(StragglerFinder& finder,
                              const std::vector<RankTimes>& times,
                              int periods) {
  for (int i = 0; i < periods; ++i) {
    if (auto found = finder.add(times, kPeriod)) return found;
  }
  return std::nullopt;
}

TEST(Stragglers, AreNamedWithTheirPartAndRatio) {
  StragglerFinder finder({0, 0, 0, 0}, {0, 0, 0, 0});
  std::vector<RankTimes> times(4, rank_with(0.3, 0.6));
  times[2] = rank_with(0.9, 0.6);

  EXPECT_FALSE(told(finder, times, 2)) << "it has to persist";
  const auto found = told(finder, times, 1);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->host, -1);
  EXPECT_EQ(found->part, "forward");
  EXPECT_DOUBLE_EQ(found->ratio, 3.0);
  EXPECT_FALSE(told(finder, times, 9)) << "it is reported once";
}

TEST(Stragglers, AreHostsIfAllTheirRanksAreSlow) {
  StragglerFinder finder({0, 0, 0, 0}, {0, 0, 1, 1});
  const std::vector<RankTimes> times = {
      rank_with(0.3, 0.6), rank_with(0.3, 0.6), rank_with(0.3, 1.2), rank_with(0.3, 1.2)};

  const auto found = told(finder, times, 3);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->host, 1);
  EXPECT_EQ(found->part, "backward");
  EXPECT_DOUBLE_EQ(found->ratio, 2.0);
}

TEST(Stragglers, HaveTheSameWorkAsThoseTheyAreComparedWith) {
  StragglerFinder finder({0, 0, 1, 1}, {0, 0, 0, 0});
  const std::vector<RankTimes> stages = {
      rank_with(0.1, 0.2), rank_with(0.1, 0.2), rank_with(0.5, 1.0), rank_with(0.5, 1.0)};

  EXPECT_FALSE(told(finder, stages, 9));
}

TEST(Stragglers, AreNotRanksThatAreSlowNowAndThen) {
  StragglerFinder finder({0, 0, 0}, {0, 0, 0});
  for (int i = 0; i < 12; ++i) {
    std::vector<RankTimes> times(3, rank_with(0.3, 0.6));
    times[static_cast<std::size_t>(i % 3)] = rank_with(0.9, 0.6);
    EXPECT_FALSE(told(finder, times, 1));
  }
}

// With fully sharded weights the others wait within their forward pass, which is then as long.
TEST(Stragglers, AreNamedWithoutAPartIfTheOthersWaitInIt) {
  StragglerFinder finder({0, 0, 0}, {0, 0, 0});
  std::vector<RankTimes> times(3, rank_with(0.9, 0.6));
  times[0].own = times[1].own = 0.96;

  const auto found = told(finder, times, 3);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->part, "");
  EXPECT_NEAR(found->ratio, 1.56 / 0.96, 1e-9);
}

}  // namespace
}  // namespace tessera::engine
