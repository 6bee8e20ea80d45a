// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/control_page.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/text.h"

namespace tessera {
namespace {

constexpr int kRanks = 3;

class ControlPages : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = ControlPage::bytes(kRanks);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory_, MAP_FAILED);
    page_ = ControlPage::format(memory_, kRanks);
  }
  void TearDown() override { munmap(memory_, bytes_); }

  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  ControlPage* page_ = nullptr;
};

TEST_F(ControlPages, StartWholeWithOneLineARank) {
  EXPECT_EQ(page_->magic, ControlPage::kMagic);
  EXPECT_EQ(page_->ranks, 3U);
  EXPECT_EQ(page_->aborted.load(), 0U);
  EXPECT_EQ(page_->abort_message(), "");
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(page_->line(rank).step.load(), -1);
}

TEST_F(ControlPages, TheFirstAbortWinsAndRingsEveryone) {
  EXPECT_TRUE(page_->abort(2, 6, "rank 2 was lost"));
  EXPECT_FALSE(page_->abort(0, 1, "a consequence"));

  EXPECT_EQ(page_->aborted.load(), 7U);
  EXPECT_EQ(page_->abort_rank.load(), 2U);
  EXPECT_EQ(page_->abort_message(), "rank 2 was lost");
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(page_->line(rank).doorbell.load(), 1U);
}

TEST_F(ControlPages, LongMessagesAreCutBetweenTwoCharacters) {
  for (const std::string begin : {"", "x"}) {
    SetUp();
    std::string text = begin;
    for (int i = 0; i < 50000; ++i)
      text += "\u00e9";
    page_->abort(0, 0, text);

    const std::string message = page_->abort_message();
    EXPECT_GT(message.size(), sizeof(page_->message) - 4);
    EXPECT_LT(message.size(), sizeof(page_->message));
    EXPECT_FALSE(text::find_invalid_utf8(message));
    EXPECT_TRUE(message.ends_with("\u00e9 ..."));
  }
}

TEST_F(ControlPages, MessagesThatFitAreWhole) {
  const std::string text(sizeof(page_->message) - 1, 'x');
  page_->abort(0, 0, text);

  EXPECT_EQ(page_->abort_message(), text);
}

TEST_F(ControlPages, OneOfManyConcurrentAbortsWins) {
  for (const std::uint32_t claims_of_the_dead : {0U, 1U}) {
    page_->aborted = 0;
    page_->abort_claim = claims_of_the_dead;
    std::atomic<int> winners = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        if (page_->abort(i % kRanks,
                         static_cast<std::uint32_t>(i),
                         std::string(100, static_cast<char>('a' + i))))
          ++winners;
      });
    }
    for (std::thread& thread : threads)
      thread.join();

    EXPECT_EQ(winners, 1);
    const std::string message = page_->abort_message();
    ASSERT_FALSE(message.empty());
    EXPECT_EQ(message, std::string(100, message[0]));  // the message of a single writer, not mixed
    EXPECT_EQ(page_->aborted.load() - 1, static_cast<std::uint32_t>(message[0] - 'a'));
  }
}

TEST_F(ControlPages, ARankKilledBeforeItsMessageDoesNotBlockAnAbort) {
  page_->abort_claim = 1;

  EXPECT_TRUE(page_->abort(2, 6, "rank 0 was lost"));

  EXPECT_EQ(page_->aborted.load(), 7U);
  EXPECT_EQ(page_->abort_rank.load(), 2U);
  EXPECT_EQ(page_->abort_message(), "rank 0 was lost");
  EXPECT_FALSE(page_->abort(1, 1, "a consequence"));
}

TEST_F(ControlPages, ARingWakesAnotherProcess) {
  const pid_t child = fork();
  if (child == 0) {
    // A timeout against hangs: the parent's ring ends the wait long before.
    const timespec limit{20, 0};
    auto* word = reinterpret_cast<std::uint32_t*>(&page_->line(1).doorbell);
    while (page_->line(1).doorbell.load() == 0) {
      if (syscall(SYS_futex, word, FUTEX_WAIT, 0, &limit, nullptr, 0) != 0 && errno == ETIMEDOUT)
        _exit(1);
    }
    _exit(0);
  }

  page_->ring(1);

  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tessera
