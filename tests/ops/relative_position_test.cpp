// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/relative_position.h"

#include <map>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

std::int64_t bucket(const RelativeBuckets& rule, std::int64_t distance) {
  return relative_buckets(rule, distance, 1).item<std::int64_t>();
}

// Buckets that transformers' T5 gives for 32 buckets up to a distance of 128.
TEST(RelativeBuckets, OfBothDirectionsAreThoseOfPublishedModels) {
  const std::map<std::int64_t, std::int64_t> published = {{-200, 15},
                                                          {-64, 14},
                                                          {-20, 10},
                                                          {-8, 8},
                                                          {-1, 1},
                                                          {0, 0},
                                                          {1, 17},
                                                          {7, 23},
                                                          {8, 24},
                                                          {12, 25},
                                                          {16, 26},
                                                          {23, 27},
                                                          {64, 30},
                                                          {127, 31}};
  for (const auto& [distance, expected] : published)
    EXPECT_EQ(bucket({}, distance), expected) << distance;
}

TEST(RelativeBuckets, OfOneDirectionAreThoseOfPublishedModels) {
  const std::map<std::int64_t, std::int64_t> published = {
      {-1, 1}, {-15, 15}, {-16, 16}, {-19, 17}, {-40, 23}, {-113, 31}, {0, 0}, {1, 0}, {50, 0}};
  for (const auto& [distance, expected] : published)
    EXPECT_EQ(bucket({.bidirectional = false}, distance), expected) << distance;
}

TEST(RelativeBuckets, OfAListAreThoseOfEachDistance) {
  const RelativeBuckets odd = {.count = 11, .max_distance = 19};
  const at::Tensor all = relative_buckets(odd, -30, 61);

  for (std::int64_t i = 0; i < 61; ++i)
    EXPECT_EQ(all[i].item<std::int64_t>(), bucket(odd, i - 30)) << i - 30;
  EXPECT_EQ(all.max().item<std::int64_t>(), 9);  // two sides of 5
}

TEST(RelativeBuckets, AreRefusedWhereNoneCouldBeShared) {
  EXPECT_THROW((void)relative_buckets({.count = 3}, 0, 4), Error);
  EXPECT_THROW((void)relative_buckets({.count = 1, .bidirectional = false}, 0, 4), Error);
  EXPECT_THROW((void)relative_buckets({.count = 32, .max_distance = 8}, 0, 4), Error);
  EXPECT_EQ(bucket({.count = 4, .max_distance = 2}, -3), 1);
}

}  // namespace
}  // namespace tessera::ops
