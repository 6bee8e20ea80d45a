// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
// Ranks are not forked from a process that has worker threads of ATen. Every case runs in its own
// process: death tests in the threadsafe style run the program again.
#include "tessera/engine/kernel_threads.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/engine/launch.h"
#include "tessera/mesh/mesh.h"

namespace tessera::engine {
namespace {

constexpr int kThreads = 2;
/// A test that hangs ends by this signal instead.
constexpr unsigned kLongest_s = 60;

void run_parallel_operation() {
  at::set_num_threads(kThreads);
  at::ones({1 << 22}).add_(1.0);
}

/// Runs a parallel operation on two ranks, and leaves with the job's exit code or the error's.
[[noreturn]] void launch_and_leave() {
  alarm(kLongest_s);
  try {
    std::_Exit(run_ranks(mesh::Mesh::data_parallel(2), kThreads, log_failure, [](comm::World&) {
      run_parallel_operation();
      return kExitOk;
    }));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    std::_Exit(exit_code(error.kind()));
  }
}

class KernelThreads : public ::testing::Test {
 protected:
  KernelThreads() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(KernelThreads, ThatRunBeforeTheRanksAreRefusedWithTheRemedy) {
  EXPECT_EXIT(
      {
        run_parallel_operation();
        launch_and_leave();
      },
      ::testing::ExitedWithCode(2),
      "started worker threads(.|\n)*fix: start the ranks before the first ATen operation");
}

TEST_F(KernelThreads, DoNotExistAfterAnOperationOnOneThread) {
  EXPECT_EXIT(
      {
        at::set_num_threads(1);
        at::ones({1 << 22}).add_(1.0);
        launch_and_leave();
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST_F(KernelThreads, DoNotExistBecauseTheirNumberWasSet) {
  EXPECT_EXIT(
      {
        at::set_num_threads(kThreads);
        launch_and_leave();
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST_F(KernelThreads, AreNotTakenForThreadsOfTheUser) {
  EXPECT_EXIT(
      {
        std::mutex gate;
        gate.lock();
        std::thread other([&] { const std::lock_guard opened(gate); });
        other.detach();
        launch_and_leave();
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST_F(KernelThreads, AreStartedAgainByTheNextOperation) {
  EXPECT_EXIT(
      {
        alarm(kLongest_s);
        run_parallel_operation();
        EXPECT_THROW(require_no_kernel_threads(), Error);
        require_no_kernel_threads();
        run_parallel_operation();
        EXPECT_THROW(require_no_kernel_threads(), Error);
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0),
      "");
}

}  // namespace
}  // namespace tessera::engine
