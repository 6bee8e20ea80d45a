// SPDX-License-Identifier: Apache-2.0
// Standard output whose reader is slow or has exited.
#include "tessera/cli/terminal.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/cli/app.h"

namespace tessera::cli {
namespace {

/// Makes standard output a pipe while it lives; the test is its reader.
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
    ::close(before_);
    ::close(pipe_[1]);
    leave();
  }
  PipedOutput(const PipedOutput&) = delete;
  PipedOutput& operator=(const PipedOutput&) = delete;

  /// Closes the reading end.
  void leave() {
    if (pipe_[0] >= 0) ::close(pipe_[0]);
    pipe_[0] = -1;
  }
  /// Writes until the pipe is full.
  void fill() const {
    ASSERT_EQ(::fcntl(pipe_[1], F_SETFL, O_NONBLOCK), 0);
    while (::write(pipe_[1], "x", 1) == 1) {
    }
    ASSERT_EQ(::fcntl(pipe_[1], F_SETFL, 0), 0);
  }
  /// Reads everything available.
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

TEST(Terminal, ReportsThatItWaitsForItsReader) {
  go_on_without_a_reader();
  const PipedOutput output;
  output.fill();
  Terminal terminal;
  int waits = 0;
  std::string unread;
  terminal.on_wait([&] {
    if (++waits == 4) unread = output.read();
  });
  std::string told;
  log::set_sink([&](log::Level /*level*/, std::string_view text) { told += text; });

  terminal.line("step 1");

  log::set_sink({});
  go_on_without_a_reader(false);
  EXPECT_EQ(waits, 4);
  EXPECT_NE(told.find("waits for the reader of its standard output"), std::string::npos) << told;
  EXPECT_EQ(unread.find_first_not_of('x'), std::string::npos);
  EXPECT_EQ(output.read(), "step 1\n");
}

TEST(Terminal, ShowsControlCharactersOfNamesAndLeavesThoseOfData) {
  const PipedOutput output;
  Terminal terminal;

  terminal.line("class \033]0;title\a");
  terminal.data("text \033[31m");

  EXPECT_EQ(output.read(), "class \\x1b]0;title\\x07\ntext \033[31m\n");
}

TEST(Terminal, HasNoLiveLineUnderALauncher) {
  const int pty = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (pty < 0 || ::grantpt(pty) != 0 || ::unlockpt(pty) != 0) GTEST_SKIP() << "no /dev/pts";
  const int screen = ::open(::ptsname(pty), O_RDWR | O_NOCTTY);
  ASSERT_GE(screen, 0);
  const std::array variables = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

  EXPECT_TRUE(shows_live_lines(screen));
  for (const char* const variable : variables)
    ::setenv(variable, std::string_view(variable).ends_with("SIZE") ? "2" : "0", 1);
  EXPECT_FALSE(shows_live_lines(screen));
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_FALSE(shows_live_lines(screen)) << "variables that contradict each other";
  for (const char* const variable : variables)
    ::unsetenv(variable);
  ::close(screen);
  ::close(pty);
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

/// A safetensors file with one tensor, the number 0.
std::string one_number() {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  return static_cast<char>(header.size()) + std::string(7, '\0') + header + std::string(4, '\0');
}

// The line that meets the error is flushed at once, so that no write fails when the program ends.
TEST(Terminal, TakesAReaderWhoHasGoneForNoFailure) {
  const files::TempDir folder;
  std::string program = "tessera", command = "convert", source = folder.path() / "one.safetensors",
              target = folder.path() / "one.bin";
  files::write_atomic(source, one_number());
  std::array words = {program.data(), command.data(), source.data(), target.data()};
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  int code = -1;
  {
    PipedOutput output;
    output.leave();

    code = tessera_main(static_cast<int>(words.size()), words.data());

    EXPECT_NE(std::ferror(stdout), 0);
    std::clearerr(stdout);
  }
  std::signal(SIGPIPE, before);

  EXPECT_EQ(code, 0);
  EXPECT_TRUE(std::filesystem::exists(target));
}

}  // namespace
}  // namespace tessera::cli
