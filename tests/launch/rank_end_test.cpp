// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/rank_end.h"

#include <csignal>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

using testing::HasSubstr;

TEST(RankEnd, OfAKillIsACommunicationError) {
  const Loss loss = describe_loss(3, SIGKILL, 41, false);

  EXPECT_EQ(loss.kind, Error::Kind::Comm);
  EXPECT_EQ(loss.text,
            "rank 3 was lost: signal 9 (SIGKILL) at step 41; somebody or something sent it");
}

TEST(RankEnd, OfAKillWhileTheKernelCountedOneIsForMemory) {
  const Loss loss = describe_loss(3, SIGKILL, 41, true);

  EXPECT_EQ(loss.kind, Error::Kind::Memory);
  EXPECT_THAT(loss.text, HasSubstr("memory ran out"));
  EXPECT_THAT(loss.remedy, HasSubstr("train_micro_batch_size_per_gpu"));
}

TEST(RankEnd, ByAnotherSignalIsNotForMemory) {
  EXPECT_EQ(describe_loss(0, SIGSEGV, -1, true).kind, Error::Kind::Comm);
  EXPECT_THAT(describe_loss(0, SIGSEGV, -1, true).text, HasSubstr("before its first step"));
}

TEST(RankEnd, WithACodeKeepsItsKind) {
  const Loss loss = describe_loss(2, 3 << 8, 5, false);  // exit(3)

  EXPECT_EQ(loss.kind, Error::Kind::Data);
  EXPECT_THAT(loss.remedy, HasSubstr("rank_00002.log"));
}

TEST(RankEnd, InAgreementBreaksNothing) {
  for (const int code : {0, 9, 75, 130, 143})
    EXPECT_TRUE(is_orderly(code)) << code;
  for (const int code : {1, 2, 3, 4, 5, 6, 7, 8, 70, 127})
    EXPECT_FALSE(is_orderly(code)) << code;
}

TEST(RankEnd, CodesAndKindsAgree) {
  for (int code = 2; code <= 8; ++code)
    EXPECT_EQ(exit_code(kind_of(code)), code);
  EXPECT_EQ(kind_of(70), Error::Kind::Bug);
  EXPECT_EQ(kind_of(99), Error::Kind::Bug);
}

TEST(RankPosition, SaysStepPlaceAndPeer) {
  RankLine line;
  line.step = 7;
  std::strcpy(line.where, "reduce h.3 (step.cpp:44)");
  line.waiting_for = 2;

  EXPECT_EQ(position(line), "at step 7, last in reduce h.3 (step.cpp:44), waiting for rank 1");
  EXPECT_EQ(position(RankLine{}), "before its first step");
}

}  // namespace
}  // namespace tessera::launch
