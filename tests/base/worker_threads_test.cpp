// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include "tessera/base/worker_threads.h"

#include <atomic>
#include <new>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

constexpr int kItems = 1000;

/// Takes items until none is left; calls `on_item` for each.
template <class OnItem>
int take_all(int threads, const OnItem& on_item) {
  std::atomic<int> next{0}, done{0};
  on_threads(threads, [&](bool /*is_caller*/, const std::atomic<bool>& failed) {
    while (!failed) {
      const int item = next++;
      if (item >= kItems) return;
      on_item(item);
      ++done;
    }
  });
  return done;
}

TEST(OnThreads, DoesAllWorkWithAnyNumberOfThreads) {
  for (const int threads : {0, 1, 2, 5})
    EXPECT_EQ(take_all(threads, [](int) {}), kItems) << threads;
}

TEST(OnThreads, RethrowsWhatAnyThreadThrowsAfterAllHaveEnded) {
  for (const int threads : {1, 2, 5}) {
    EXPECT_THROW(take_all(threads,
                          [](int item) {
                            if (item >= 10) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
  }
}

TEST(OnThreads, RethrowsAnErrorOfAnotherThread) {
  const auto fail = [](bool is_caller, const std::atomic<bool>& failed) {
    if (!is_caller) throw std::runtime_error("of another");
    while (!failed) {
    }
  };
  EXPECT_THROW(on_threads(2, fail), std::runtime_error);
}

TEST(OnThreads, DoesAllWorkWhereNoThreadCanBeStarted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs address space of its own";
#endif
  const pid_t child = fork();
  if (child == 0) {
    rlimit none{};
    getrlimit(RLIMIT_AS, &none);
    none.rlim_cur = rlim_t{1} << 20;  // less than the stack of a thread
    setrlimit(RLIMIT_AS, &none);
    _exit(take_all(4, [](int) {}) == kItems ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera
