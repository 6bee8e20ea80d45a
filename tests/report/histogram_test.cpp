// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::report {
namespace {

using testing::ElementsAre;

double count_of(const Histogram& histogram, double low, double high) {
  double out = 0;
  double lower = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < histogram.limits.size(); ++i) {
    if (lower >= low && histogram.limits[i] <= high) out += histogram.counts[i];
    lower = histogram.limits[i];
  }
  return out;
}

TEST(BucketCounts, HaveMomentsAndExtremes) {
  BucketCounts counts;
  counts.add(std::vector<float>{-1.5F, 0.25F, 2.0F});

  const Histogram histogram = counts.histogram();

  EXPECT_EQ(histogram.num, 3);
  EXPECT_EQ(histogram.sum, 0.75);
  EXPECT_EQ(histogram.sum_squares, 6.3125);
  EXPECT_EQ(histogram.min, -1.5);
  EXPECT_EQ(histogram.max, 2.0);
}

TEST(BucketCounts, PutEachValueBetweenItsLimits) {
  for (const float value : {-3e7F,
                            -1.0F,
                            -1.1F,
                            -2e-12F,
                            -0.0F,
                            0.0F,
                            1e-12F,
                            3e-5F,
                            1.1F,
                            1.21F,
                            0.999F,
                            9e5F,
                            3e38F}) {
    BucketCounts counts;
    counts.add(std::vector<float>{value});

    const Histogram histogram = counts.histogram();

    ASSERT_THAT(histogram.counts, ElementsAre(1)) << value;
    EXPECT_LT(value, histogram.limits[0]);
    // A bucket is a tenth wide, except for those around zero and beyond the last limit.
    if (std::abs(value) > 2e-12 && std::abs(value) < 1e6) {
      EXPECT_LE(histogram.limits[0] - value, 0.11 * std::abs(value)) << value;
    }
  }
}

TEST(BucketCounts, AreAddedWithAFactorAndLeaveOutWhatIsNotFinite) {
  BucketCounts counts;
  counts.add(std::vector<float>{4.0F, NAN, INFINITY, -8.0F}, 0.5);

  const Histogram histogram = counts.histogram();

  EXPECT_EQ(histogram.num, 2);
  EXPECT_EQ(histogram.max, 2.0);
  EXPECT_EQ(histogram.min, -4.0);
  EXPECT_EQ(count_of(histogram, 0.0, 3.0), 1);
}

TEST(BucketCounts, OfTwoRanksAddUp) {
  BucketCounts all, first, second;
  all.add(std::vector<float>{1.0F, -2.0F, 3.0F});
  first.add(std::vector<float>{1.0F});
  second.add(std::vector<float>{-2.0F, 3.0F});

  for (std::size_t i = 0; i < first.sums().size(); ++i)
    first.sums()[i] += second.sums()[i];
  for (std::size_t i = 0; i < first.extremes().size(); ++i)
    first.extremes()[i] = std::max(first.extremes()[i], second.extremes()[i]);

  EXPECT_EQ(first.histogram().counts, all.histogram().counts);
  EXPECT_EQ(first.histogram().limits, all.histogram().limits);
  EXPECT_EQ(first.histogram().min, -2.0);
  EXPECT_EQ(first.histogram().max, 3.0);
}

TEST(BucketCounts, WithoutValuesAreEmpty) {
  EXPECT_EQ(BucketCounts().histogram().num, 0);
  EXPECT_TRUE(BucketCounts().histogram().limits.empty());
}

}  // namespace
}  // namespace tessera::report
