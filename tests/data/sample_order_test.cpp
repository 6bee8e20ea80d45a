// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sample_order.h"

#include <cmath>
#include <numeric>

#include "support/text_files.h"
#include <gtest/gtest.h>

namespace tessera::data {
namespace {

using test::error_of;

std::vector<std::int64_t> order(std::int64_t size,
                                std::uint64_t seed,
                                std::int64_t epoch,
                                bool shuffle = true) {
  const SampleOrder sample(size, shuffle, seed);
  std::vector<std::int64_t> out(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i)
    out[static_cast<std::size_t>(i)] = sample(epoch, i);
  return out;
}

TEST(SampleOrder, IsAPermutation) {
  std::vector<std::int64_t> sizes = {1000, 1023, 1024, 1025, 4095, 4097, 100'003, 1 << 20};
  for (std::int64_t size = 1; size <= 130; ++size)
    sizes.push_back(size);

  for (const std::int64_t size : sizes) {
    std::vector<std::int64_t> sorted = order(size, 42, 3);
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t i = 0; i < size; ++i)
      ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i) << "of size " << size;
  }
}

TEST(SampleOrder, IsTheIdentityWithoutShuffle) {
  const auto plain = order(1000, 42, 7, false);

  for (std::int64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(plain[static_cast<std::size_t>(i)], i);
}

TEST(SampleOrder, DependsOnSeedAndEpoch) {
  const auto a = order(1000, 1, 0), other_epoch = order(1000, 1, 1), other_seed = order(1000, 2, 0);

  EXPECT_EQ(a, order(1000, 1, 0));
  EXPECT_NE(a, other_epoch);
  EXPECT_NE(a, other_seed);
}

// Each of the size^2 places is equally likely: chi-square over many epochs, with a bound of six
// standard deviations.
void expect_uniform(std::int64_t size) {
  constexpr int kEpochs = 4000;
  std::vector<double> counts(static_cast<std::size_t>(size * size));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto sample = order(size, 99, epoch);
    for (std::int64_t i = 0; i < size; ++i)
      counts[static_cast<std::size_t>(i * size + sample[static_cast<std::size_t>(i)])] += 1;
  }
  const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
  double chi = 0;
  for (const double count : counts)
    chi += (count - expected) * (count - expected) / expected;
  const double freedom = static_cast<double>((size - 1) * (size - 1));
  EXPECT_LT(chi, freedom + 6 * std::sqrt(2 * freedom)) << "size " << size;
}

TEST(SampleOrder, LooksUniform) {
  for (const std::int64_t size : {2, 3, 5, 7, 10, 16, 17, 31})
    expect_uniform(size);
}

TEST(SampleOrder, LeavesNoNeighboursTogether) {
  const auto sample = order(100'000, 5, 0);
  int neighbours = 0;

  for (std::size_t i = 0; i + 1 < sample.size(); ++i)
    neighbours += sample[i + 1] == sample[i] + 1 ? 1 : 0;

  EXPECT_LT(neighbours, 10);  // one is expected of chance
}

TEST(BatchPlan, DropsTheIncompleteBatchOfAnEpoch) {
  const BatchPlan plan(10, 4, true);

  const GlobalBatch first = plan.at(0), second = plan.at(first.consumed_after),
                    third = plan.at(second.consumed_after);

  EXPECT_EQ(plan.steps_per_epoch(), 2);
  EXPECT_EQ(first.first, 0);
  EXPECT_EQ(second.first, 4);
  EXPECT_EQ(second.size, 4);
  EXPECT_EQ(second.consumed_after, 10);  // two dropped
  EXPECT_EQ(third.epoch, 1);
  EXPECT_EQ(third.first, 0);
  EXPECT_EQ(third.consumed_before, 10);
}

TEST(BatchPlan, TrainsTheIncompleteBatchAtItsOwnSizeWhenKept) {
  const BatchPlan plan(10, 4, false);

  const GlobalBatch third = plan.at(8), fourth = plan.at(third.consumed_after);

  EXPECT_EQ(plan.steps_per_epoch(), 3);
  EXPECT_EQ(third.size, 2);
  EXPECT_EQ(third.consumed_after, 10);
  EXPECT_EQ(fourth.epoch, 1);
  EXPECT_EQ(fourth.size, 4);
}

TEST(BatchPlan, HasNoIncompleteBatchWhereSizesFit) {
  for (const bool drop : {true, false}) {
    const BatchPlan plan(12, 4, drop);
    EXPECT_EQ(plan.steps_per_epoch(), 3);
    EXPECT_EQ(plan.at(8).consumed_after, 12);
    EXPECT_EQ(plan.at(12).epoch, 1);
  }
}

TEST(BatchPlan, UsesEverySampleOnceAnEpochAcrossAChangeOfBatchSize) {
  // Two steps of 3, then a resume with batches of 4.
  const BatchPlan before(11, 3, true), after(11, 4, true);
  const GlobalBatch resumed = after.at(before.at(before.at(0).consumed_after).consumed_after);

  EXPECT_EQ(resumed.epoch, 0);
  EXPECT_EQ(resumed.first, 6);
  EXPECT_EQ(resumed.consumed_after, 11);  // 6 + 4, and one dropped
  EXPECT_EQ(after.at(9).epoch, 1);        // two left: less than a batch
}

TEST(BatchPlan, CountsStepsAsItTakesThem) {
  for (const bool drop : {true, false}) {
    for (std::int64_t size = 1; size <= 30; ++size) {
      for (std::int64_t batch = 1; batch <= (drop ? size : 35); ++batch) {
        const BatchPlan plan(size, batch, drop);
        std::int64_t consumed = 0, steps = 0;
        while (plan.at(consumed).epoch == 0) {
          consumed = plan.at(consumed).consumed_after;
          ++steps;
        }
        ASSERT_EQ(steps, plan.steps_per_epoch()) << size << " " << batch << " " << drop;
        ASSERT_EQ(consumed, size);
      }
    }
  }
}

TEST(BatchPlan, CountsStepsOfABatchThatGrows) {
  // 2 samples a step, 4 from the tenth sample on, then 6 from the thirtieth.
  const auto size_at = [](std::int64_t consumed) {
    return consumed < 10 ? 2 : (consumed < 30 ? 4 : 6);
  };
  for (const bool drop : {true, false}) {
    const BatchPlan plan(23, 6, drop, size_at);
    std::int64_t consumed = 0, steps = 0;
    while (plan.at(consumed).epoch < 5) {
      const GlobalBatch batch = plan.at(consumed);
      EXPECT_TRUE(batch.size == size_at(consumed) || !drop) << consumed;
      consumed = batch.consumed_after;
      ++steps;
    }
    EXPECT_EQ(plan.steps_in(5.0), static_cast<double>(steps)) << drop;
  }
}

// As in Hugging Face: the number of epochs times the steps of an epoch, rounded up.
TEST(BatchPlan, CountsTheSameStepsOfPartOfAnEpochFromEveryStepOn) {
  EXPECT_EQ(BatchPlan(58, 4, true).steps_in(1.5), 21);   // 14 a whole one
  EXPECT_EQ(BatchPlan(50, 40, false).steps_in(1.7), 4);  // 2
  const auto ramp = [](std::int64_t consumed) { return consumed < 10 ? 3 : 4; };
  for (const bool drop : {true, false}) {
    for (const double epochs : {0.3, 1.0, 1.5, 1.7, 2.7, 4.4}) {
      for (const BatchPlan& plan : {BatchPlan(58, 4, drop), BatchPlan(58, 4, drop, ramp)}) {
        const double all = plan.steps_in(epochs);
        std::int64_t consumed = 0;
        for (double made = 0; made < all; ++made) {
          EXPECT_EQ(made + plan.steps_in(epochs, consumed), all) << epochs << " from " << consumed;
          consumed = plan.at(consumed).consumed_after;
        }
        EXPECT_EQ(plan.steps_in(epochs, consumed), 0) << epochs;
      }
    }
  }
}

TEST(BatchPlan, RefusesABatchLargerThanTheData) {
  EXPECT_EQ(error_of([] { BatchPlan(3, 4, true); }).kind(), Error::Kind::Data);
  EXPECT_EQ(BatchPlan(3, 4, false).at(0).size, 3);
}

}  // namespace
}  // namespace tessera::data
