// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/process.h"

#include <array>
#include <csignal>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

TEST(Process, RunsUntilItHasEnded) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;)
      pause();
  }

  EXPECT_TRUE(is_running(getpid()));
  EXPECT_TRUE(is_running(child));
  kill(child, SIGSTOP);
  EXPECT_TRUE(is_running(child)) << "stopped";
  kill(child, SIGKILL);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  EXPECT_FALSE(is_running(child)) << "ended, and nobody has asked how";
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(is_running(child));
  EXPECT_FALSE(is_running(0));
  EXPECT_FALSE(is_running(-1)) << "kill(2) would speak of all processes";
}

TEST(Process, StartsAProgramInAGroupOfItsOwn) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);

  const pid_t child = spawn_in_group({"sh", "-c", "echo $$"}, {{ends[1], STDOUT_FILENO}});

  close(ends[1]);
  ASSERT_GT(child, 0);
  const pid_t group = getpgid(child);
  std::array<char, 32> text{};
  const ssize_t size = read(ends[0], text.data(), text.size() - 1);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(group, child);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string(text.data()), std::to_string(child) + "\n");
  EXPECT_EQ(spawn_in_group({"there-is-no-such-program"}, {}), 0);
}

/// A program below a shell that both have WHICH=1 in their environment; the test process is above
/// them.
class WrappedProcess : public testing::Test {
 protected:
  WrappedProcess() {
    std::array<int, 2> pipe_ends{};
    if (pipe(pipe_ends.data()) != 0) return;
    shell_ = fork();
    if (shell_ == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      close(pipe_ends[0]);
      setenv("WHICH", "1", 1);
      execl("/bin/sh", "sh", "-c", "sleep 600 >/dev/null & echo $!; wait", nullptr);
      _exit(127);
    }
    close(pipe_ends[1]);
    std::array<char, 32> text{};
    if (read(pipe_ends[0], text.data(), text.size() - 1) > 0) program_ = std::stoi(text.data());
    close(pipe_ends[0]);
  }
  ~WrappedProcess() override {
    if (program_ > 0) kill(program_, SIGKILL);
    kill(shell_, SIGKILL);
    waitpid(shell_, nullptr, 0);
  }
  pid_t shell_ = 0, program_ = 0;
};

TEST_F(WrappedProcess, KnowsWhoStartedItsWrapper) {
  ASSERT_GT(program_, 0);

  EXPECT_EQ(ancestor_without("WHICH", program_), getpid());
  EXPECT_EQ(ancestor_without("HICH", program_), shell_) << "a part of the name is another name";
  EXPECT_EQ(ancestor_without("WHICH", getpid()), getppid());
}

}  // namespace
}  // namespace tessera
