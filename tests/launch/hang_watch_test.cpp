// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include "tessera/launch/hang_watch.h"

#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/launch/shared_files.h"

namespace tessera::launch {
namespace {

using testing::HasSubstr;

/// A process that does nothing until it is killed.
class Idle {
 public:
  Idle() : pid_(fork()) {
    while (pid_ == 0)
      pause();
  }
  ~Idle() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;
  [[nodiscard]] pid_t pid() const { return pid_; }
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_;
};

/// Three ranks that run; rank 0 waits for rank 1.
class HangWatchTest : public testing::Test {
 protected:
  HangWatchTest() {
    for (int rank = 0; rank < 3; ++rank)
      page().line(rank).state = static_cast<std::uint32_t>(RankState::Running);
    page().line(0).waiting_for = 2;
  }
  [[nodiscard]] ControlPage& page() const { return files_.control(); }
  /// The first rank that is found within half a second.
  std::optional<HangingRank> find() {
    for (int i = 0; i < 50; ++i) {
      if (auto found = watch_.look({self_.pid(), idle_.pid(), self_.pid()})) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
  }

  SharedFiles files_{3, std::size_t{1} << 20};
  Idle self_, idle_;
  HangWatch watch_{page(), 0, {.waited_for_s = 0.1, .stopped_s = 0.2, .activity_s = 0.1}};
};

TEST_F(HangWatchTest, ARankThatOthersWaitForIsReportedOnce) {
  const auto found = find();

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_FALSE(found->stopped);
  EXPECT_THAT(found->text, HasSubstr("rank 1 hangs"));
  EXPECT_THAT(found->text, HasSubstr("rank 0 waits for it"));
  EXPECT_FALSE(find());
}

TEST_F(HangWatchTest, AStoppedRankIsReportedTwice) {
  idle_.stop();
  page().line(1).waiting_for = 1;  // as it was when it was stopped

  const auto first = find(), second = find();

  ASSERT_TRUE(first && second);
  EXPECT_FALSE(first->stopped);
  EXPECT_TRUE(second->stopped);
  EXPECT_THAT(second->text, HasSubstr("kill -CONT " + std::to_string(idle_.pid())));
}

TEST_F(HangWatchTest, ARankThatShowsLifeOrWaitsItselfIsNotReported) {
  page().line(1).waiting_for = 3;
  page().line(2).state = static_cast<std::uint32_t>(RankState::Finished);
  EXPECT_FALSE(find()) << "rank 1 waits for a rank that has ended, which the supervisor tells";

  page().line(1).waiting_for = 0;
  for (int i = 0; i < 40; ++i) {
    ++page().line(1).life;
    EXPECT_FALSE(watch_.look({self_.pid(), idle_.pid(), self_.pid()}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(HangWatchTest, AStoppedRankThatNobodyWaitsForIsReportedOnceAndEndsWhenTheJobIsToStop) {
  page().line(0).waiting_for = 0;
  idle_.stop();

  const auto first = find();

  ASSERT_TRUE(first);
  EXPECT_FALSE(first->stopped);
  EXPECT_THAT(first->text, HasSubstr("kill -CONT " + std::to_string(idle_.pid())));
  EXPECT_FALSE(find()) << "whoever stopped it may let it go on";

  page().stop_requested = SIGTERM;
  const auto second = find();
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->stopped);
}

TEST_F(HangWatchTest, ARankThatIsStoppedBeforeItRunsIsReported) {
  page().line(1).state = static_cast<std::uint32_t>(RankState::Starting);
  idle_.stop();

  const auto first = find(), second = find();

  ASSERT_TRUE(first && second);
  EXPECT_TRUE(second->stopped);
}

/// Every activity that a disk, a file server or a reader can hold up.
class RankThatWaits : public HangWatchTest, public testing::WithParamInterface<Activity> {};

TEST_P(RankThatWaits, IsReportedOnceForAllRanksAlthoughNobodyWaits) {
  page().line(0).waiting_for = 0;
  for (int rank = 0; rank < 3; ++rank)
    page().line(rank).activity = static_cast<std::uint32_t>(GetParam());

  const auto found = find();

  ASSERT_TRUE(found);
  EXPECT_FALSE(found->stopped);
  EXPECT_THAT(found->text,
              HasSubstr("ranks 0, 1, 2 have been " +
                        std::string(activity_text(page().line(0).activity)) + " for "));
  EXPECT_FALSE(find());
}

INSTANTIATE_TEST_SUITE_P(Activities,
                         RankThatWaits,
                         testing::Values(Activity::ReadData,
                                         Activity::Load,
                                         Activity::Save,
                                         Activity::Generate,
                                         Activity::Report));

TEST_F(HangWatchTest, ARankThatWaitsForItsDiskIsReportedAlthoughItShowsLife) {
  page().line(0).waiting_for = 0;
  page().line(2).activity = static_cast<std::uint32_t>(Activity::Save);
  std::optional<HangingRank> found;

  for (int i = 0; i < 50 && !found; ++i) {
    ++page().line(2).life;
    found = watch_.look({self_.pid(), idle_.pid(), self_.pid()});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  ASSERT_TRUE(found);
  EXPECT_THAT(found->text, HasSubstr("rank 2 has been"));
}

TEST_F(HangWatchTest, ARankThatSavesAndMakesProgressIsNotReported) {
  page().line(0).waiting_for = 0;
  page().line(2).activity = static_cast<std::uint32_t>(Activity::Save);

  for (int i = 0; i < 40; ++i) {
    ++page().line(2).work;
    EXPECT_FALSE(watch_.look({self_.pid(), idle_.pid(), self_.pid()}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace
}  // namespace tessera::launch
