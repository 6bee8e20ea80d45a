// SPDX-License-Identifier: Apache-2.0
// Standard output that nobody reads for a while.
#include "tessera/cli/terminal.h"

#include <cstdio>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera::cli {
namespace {

/// Standard output is a pipe until this goes; the test is its reader.
class PipedOutput {
 public:
  PipedOutput() {
    std::fflush(stdout);
    before_ = ::dup(STDOUT_FILENO);
    EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0);
    EXPECT_EQ(::dup2(pipe_[1], STDOUT_FILENO), STDOUT_FILENO);
  }
  ~PipedOutput() {
    std::fflush(stdout);
    ::dup2(before_, STDOUT_FILENO);
    for (const int fd : {before_, pipe_[0], pipe_[1]})
      ::close(fd);
  }
  PipedOutput(const PipedOutput&) = delete;
  PipedOutput& operator=(const PipedOutput&) = delete;

  /// Until it takes no more.
  void fill() const {
    ASSERT_EQ(::fcntl(pipe_[1], F_SETFL, O_NONBLOCK), 0);
    while (::write(pipe_[1], "x", 1) == 1) {
    }
    ASSERT_EQ(::fcntl(pipe_[1], F_SETFL, 0), 0);
  }
  /// All that is there.
  [[nodiscard]] std::string read() const {
    EXPECT_EQ(::fcntl(pipe_[0], F_SETFL, O_NONBLOCK), 0);
    std::string out, some(1 << 16, '\0');
    for (ssize_t count = 0; (count = ::read(pipe_[0], some.data(), some.size())) > 0;)
      out.append(some, 0, static_cast<std::size_t>(count));
    return out;
  }

 private:
  int before_ = -1, pipe_[2] = {-1, -1};
};

TEST(Terminal, TellsThatItWaitsForItsReader) {
  const PipedOutput output;
  output.fill();
  Terminal terminal;
  int waits = 0;
  std::string unread;
  terminal.on_wait([&] {
    if (++waits == 2) unread = output.read();
  });

  terminal.line("step 1");

  EXPECT_EQ(waits, 2);
  EXPECT_EQ(unread.find_first_not_of('x'), std::string::npos);
  EXPECT_EQ(output.read(), "step 1\n");
}

TEST(Terminal, DoesNotWaitForAReaderWhoKeepsUp) {
  const PipedOutput output;
  Terminal terminal;
  int waits = 0;
  terminal.on_wait([&] { ++waits; });

  terminal.line("step 1");

  EXPECT_EQ(waits, 0);
  EXPECT_EQ(output.read(), "step 1\n");
}

}  // namespace
}  // namespace tessera::cli
