// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/rank_end.h"

#include <csignal>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::launch {
namespace {

using testing::HasSubstr;

TEST(RankEnd, OfAKillIsACommunicationError) {
  const Loss loss = describe_loss(3, SIGKILL, 41, false, Messages());

  EXPECT_EQ(loss.kind, Error::Kind::Comm);
  EXPECT_EQ(loss.text,
            "rank 3 was lost: signal 9 (SIGKILL) at step 41; sent by a user or another program");
}

TEST(RankEnd, OfAKillWhileTheKernelCountedOneIsForMemory) {
  Messages messages;
  messages.less_memory = "use a smaller batch";
  const Loss loss = describe_loss(3, SIGKILL, 41, true, messages);

  EXPECT_EQ(loss.kind, Error::Kind::Memory);
  EXPECT_THAT(loss.text, HasSubstr("memory ran out"));
  EXPECT_EQ(loss.remedy, "use a smaller batch");
  EXPECT_EQ(describe_silent_loss(3, 41, true, messages).remedy, "use a smaller batch");
}

TEST(RankEnd, OfAKillNamesALimitOfProcessorTime) {
  const pid_t child = fork();
  if (child == 0) {  // a hard limit cannot be raised again
    const rlimit limit{1'000'000, 1'000'000};
    setrlimit(RLIMIT_CPU, &limit);
    const std::string text = describe_loss(0, SIGKILL, 41, false, Messages()).text;
    _exit(text.ends_with("or by the limit of 1000000 s of processor time (ulimit -t)") ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);

  EXPECT_EQ(status, 0);
}

TEST(RankEnd, ByAnotherSignalIsNotForMemory) {
  EXPECT_EQ(describe_loss(0, SIGSEGV, -1, true, Messages()).kind, Error::Kind::Comm);
  EXPECT_THAT(describe_loss(0, SIGSEGV, -1, true, Messages()).text,
              HasSubstr("before its first step"));
}

TEST(RankEnd, WithACodeKeepsItsKind) {
  const Loss loss = describe_loss(2, 3 << 8, 5, false, Messages());  // exit(3)

  EXPECT_EQ(loss.kind, Error::Kind::Data);
  EXPECT_THAT(loss.remedy, HasSubstr("rank_00002.log"));
}

TEST(RankEnd, SpeaksOfCheckpointsOnlyWhereTheJobSavesAny) {
  Messages training;
  training.again = "it goes on from its checkpoint";

  EXPECT_EQ(describe_loss(3, SIGKILL, 41, false, Messages()).remedy, "start it again");
  EXPECT_EQ(describe_silent_loss(3, 41, false, Messages()).remedy, "start it again");
  EXPECT_EQ(describe_silent_loss(3, 41, false, training).remedy, training.again);
}

TEST(RankEnd, NamesTheHostOfAJobOfSeveral) {
  const Loss loss = describe_loss(3, SIGKILL, 41, false, Messages());

  EXPECT_EQ(with_host(loss, "").text, loss.text);
  EXPECT_EQ(with_host(loss, "node-b").text, loss.text + "; its host is node-b");
}

TEST(RankEnd, OfARankThatHangsIsReportedAsItsOwn) {
  std::vector<char> memory(ControlPage::bytes(2) + alignof(ControlPage));
  void* place = memory.data();
  std::size_t room = memory.size();
  std::align(alignof(ControlPage), ControlPage::bytes(2), place, room);
  ControlPage& control = *ControlPage::format(place, 2);

  control.abort(0, 6, "rank 0 hangs: rank 1 has waited 300 s");

  EXPECT_EQ(failure_text(control), "rank 0 hangs: rank 1 has waited 300 s");
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

TEST(RankThatIsKnown, DependsOnTheNumberOfHostsAndNotOnThatOfRanks) {
  std::vector<std::byte> memory(ControlPage::bytes(64) + 64);
  void* start = memory.data();
  std::size_t room = memory.size();
  ControlPage* const page =
      ControlPage::format(std::align(64, ControlPage::bytes(64), start, room), 64);
  page->line(7).pid = 4711;

  EXPECT_TRUE(is_known(*page, 3, 1)) << "a rank that never started is listed as starting";
  EXPECT_TRUE(is_known(*page, 3, kHostsThatHearAll));
  EXPECT_FALSE(is_known(*page, 3, kHostsThatHearAll + 1));
  EXPECT_TRUE(is_known(*page, 7, kHostsThatHearAll + 1));
}

TEST(TextOfABrokenWorld, IsSplitAtItsRemedy) {
  const auto split = [](const std::string& text) {
    const Error out = split_remedy(Error::Kind::Comm, text);
    return std::string(out.what()) + " / " + out.fix();
  };

  EXPECT_EQ(split("host b was lost: silent; see whether it runs, then start the job again"),
            "host b was lost: silent / see whether it runs, then start the job again");
  EXPECT_EQ(split("rank 2 was lost; its host is b"), "rank 2 was lost; its host is b / ");
  EXPECT_EQ(split("no a; no b\n  fix: give both"), "no a; no b / give both");
  EXPECT_EQ(split("alone"), "alone / ");
}

}  // namespace
}  // namespace tessera::launch
