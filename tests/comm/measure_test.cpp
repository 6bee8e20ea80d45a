// SPDX-License-Identifier: Apache-2.0
// Which measurements are made of collectives, and the factors between times and bandwidths.
#include "tessera/comm/measure.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kSmall = 4096, kOdd = 10001;

MeasureOptions quick() {
  MeasureOptions options;
  options.bytes = {kSmall, kOdd};
  options.repetitions = 2;
  return options;
}

/// Returns the results of rank 0, and how many were reported while measuring.
std::vector<CollectiveSpeed> measured(int ranks, const MeasureOptions& options, int* told) {
  std::vector<CollectiveSpeed> out;
  run_threads(ranks, [&](World& world) {
    const auto all = measure_collectives(world, options, [&](const CollectiveSpeed&) {
      EXPECT_TRUE(world.is_leader());
      ++*told;
    });
    if (world.is_leader()) out = all;
  });
  return out;
}

TEST(MeasuredCollectives, AreAllOperationsOnAllSizesInBothMemories) {
  int told = 0;

  const auto speeds = measured(3, quick(), &told);

  ASSERT_EQ(speeds.size(), 8U * 2 * 2);
  EXPECT_EQ(told, 32);
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    EXPECT_EQ(speeds[i].in_regions, i < 16);
    // Whole floats for each of three ranks.
    EXPECT_EQ(speeds[i].bytes, i % 16 < 8 ? 4092U : 9996U);
    EXPECT_GT(speeds[i].seconds, 0.0);
    EXPECT_EQ(speeds[i].operation, speeds[i % 8].operation);
  }
}

TEST(MeasuredCollectives, ReportWhatARankExchanges) {
  int told = 0;
  MeasureOptions options = quick();
  options.ordinary = false;
  // A rank owns one of four equal parts; an all-reduce is a reduce-scatter and an all-gather.
  const std::map<std::string, double> expected = {{"all-reduce", 1.5},
                                                  {"reduce-scatter", 0.75},
                                                  {"all-gather", 0.75},
                                                  {"broadcast", 1.0},
                                                  {"all-to-all", 0.75},
                                                  {"all-to-all-v", 0.75},
                                                  {"all-to-all-v 4x", 0.75},
                                                  {"send/recv", 1.0}};

  const auto speeds = measured(4, options, &told);

  ASSERT_EQ(speeds.size(), 16U);
  for (const CollectiveSpeed& speed : speeds) {
    EXPECT_EQ(speed.bus_factor, expected.at(speed.operation)) << speed.operation;
    EXPECT_DOUBLE_EQ(speed.algorithm_bandwidth() * speed.seconds, static_cast<double>(speed.bytes));
    EXPECT_DOUBLE_EQ(speed.bus_bandwidth(), speed.bus_factor * speed.algorithm_bandwidth());
  }
}

TEST(MeasuredCollectives, EndWhenTheirTimeIsOver) {
  int told = 0;
  MeasureOptions options = quick();
  options.seconds = 1e-9;

  const auto speeds = measured(2, options, &told);

  ASSERT_EQ(speeds.size(), 32U);
  EXPECT_EQ(told, 32);
  for (const CollectiveSpeed& speed : speeds) {
    EXPECT_EQ(speed.seconds, 0.0);
    EXPECT_EQ(speed.bus_bandwidth(), 0.0);
  }
}

TEST(MeasuredCollectives, RepeatLessOftenWhatTakesLonger) {
  int told = 0;
  MeasureOptions options = quick();
  options.repetitions = 1'000'000;  // of 200 calls each: hours
  options.seconds = 0.5;
  const double begin = now_s();

  const auto speeds = measured(2, options, &told);

  EXPECT_GT(speeds.front().seconds, 0.0);
  EXPECT_LT(now_s() - begin, 20.0);  // a busy machine may stretch single calls
}

TEST(MeasuredCollectives, NeedTwoRanks) {
  const auto alone = solo_world();

  EXPECT_THROW(measure_collectives(*alone, quick()), Error);
}

TEST(MeasuredCollectives, SayWhatMemoryTheyTake) {
  MeasureOptions options = quick();
  options.ordinary = false;
  EXPECT_EQ(measure_memory(options), 2 * kOdd);
  options.ordinary = true;
  EXPECT_EQ(measure_memory(options), 4 * kOdd);
}

}  // namespace
}  // namespace tessera::comm
