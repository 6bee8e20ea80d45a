// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which buffers gradients of one size need.
#include "tessera/parallel/reduction_options.h"

#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

constexpr std::int64_t kNumel = 4096;

TEST(InFlight, IsNothingWhereARankAloneAddsInPlace) {
  EXPECT_EQ(in_flight({}, 1, kNumel, 5).bytes({}, 1, kNumel), 0);
}

TEST(InFlight, IsASecondBufferForSeveralBlocksOfASizeThatFitsTheBucket) {
  EXPECT_EQ(in_flight({}, 2, kNumel, 2).buffers, 1);
  EXPECT_EQ(in_flight({}, 2, kNumel, 3).buffers, 2);
  EXPECT_EQ(in_flight({.bucket = 2 * kNumel - 1}, 2, kNumel, 3).buffers, 1);
}

TEST(InFlight, IsNothingWhereRanksSumWholeGradientsInFp32) {
  const ReductionOptions once{.stage = 1, .mode = Reduction::Once, .max_micros = 4};

  EXPECT_EQ(in_flight(once, 2, kNumel, 5).bytes(once, 2, kNumel), 0);
}

TEST(InFlight, CountsWhatIsSentReceivedAndStagedInANarrowCommunicationDtype) {
  const ReductionOptions narrow{.comm_dtype = DType::BF16};

  const InFlight room = in_flight(narrow, 2, kNumel, 1);

  EXPECT_EQ(room.type, DType::BF16);
  EXPECT_TRUE(room.received);
  EXPECT_TRUE(room.staging);
  EXPECT_EQ(room.bytes(narrow, 2, kNumel), (2 + 2 + 4) * kNumel);
}

TEST(InFlight, CountsCodesAndTheirScales) {
  const ReductionOptions codes{.comm_dtype = DType::U8};

  const InFlight room = in_flight(codes, 2, kNumel, 1);

  EXPECT_TRUE(codes.in_codes());
  EXPECT_EQ(room.type, DType::U8);
  EXPECT_EQ(room.bytes(codes, 2, kNumel), 2 * (kNumel + kNumel / 256 * 4) + 4 * kNumel);
}

TEST(Residuals, AreKeptWhereGradientsAreRoundedToCodes) {
  ReductionOptions codes{.comm_dtype = DType::U8, .feedback = FeedbackOptions{}};
  EXPECT_TRUE(codes.keeps_residuals(1));
  EXPECT_TRUE(codes.keeps_residuals(2));
  // A rank alone sums its gradients in place.
  codes.mode = Reduction::Once;
  EXPECT_FALSE(codes.keeps_residuals(1));
  EXPECT_TRUE(codes.keeps_residuals(2));
  codes.comm_dtype = DType::BF16;
  EXPECT_FALSE(codes.keeps_residuals(2));
}

TEST(InFlight, HasNoCodesWhereSumsAreNarrow) {
  const ReductionOptions sums{.accumulate = DType::BF16, .comm_dtype = DType::U8};

  EXPECT_FALSE(sums.in_codes());
  EXPECT_EQ(in_flight(sums, 2, kNumel, 1).type, DType::BF16);
}

TEST(InFlight, KeepsAReducedShardWhereEveryMicroBatchIsReducedByItself) {
  const ReductionOptions once{.stage = 2, .mode = Reduction::Once, .max_micros = 2};

  const InFlight room = in_flight(once, 4, kNumel, 1);

  EXPECT_TRUE(room.reduced);
  EXPECT_EQ(room.bytes(once, 4, kNumel), 4 * kNumel + 4 * kNumel / 4);
}

// Four sources: their gradients are computed and received apart, and summed into one shard.
TEST(InFlight, HasRoomForTheGradientsOfEverySource) {
  const ReductionOptions each{.stage = 2, .max_micros = 2};
  const InFlight room = in_flight(each, 2, kNumel, 1, /*slices=*/4);
  EXPECT_TRUE(room.received);
  EXPECT_EQ(room.bytes(each, 2, kNumel, 4), 2 * 4 * 4 * kNumel);
  EXPECT_FALSE(in_flight(each, 1, kNumel, 1, 4).received) << "nothing is sent";

  const ReductionOptions once{.stage = 1, .mode = Reduction::Once};
  EXPECT_EQ(sum_bytes(once, 2, kNumel), 4 * kNumel);
  EXPECT_EQ(sum_bytes(once, 2, kNumel, 4), 2 * 4 * 4 * kNumel + 4 * kNumel / 2);
  EXPECT_EQ(sum_bytes(each, 2, kNumel, 4), 4 * kNumel / 2);
}

}  // namespace
}  // namespace tessera::parallel
