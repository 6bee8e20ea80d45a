// SPDX-License-Identifier: Apache-2.0
// labels: fast
#include "tessera/base/bounded_output.h"

#include <array>
#include <csignal>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tessera {
namespace {

/// Two ends of a channel; what is written to one is read from the other.
class Channel {
 public:
  explicit Channel(bool socket) {
    const int failed =
        socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) : pipe(ends_.data());
    EXPECT_EQ(failed, 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Channel() {
    close_reader();
    close(ends_[1]);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  [[nodiscard]] int writer() const { return ends_[1]; }
  std::string read_all() {
    std::string out;
    std::array<char, 4096> some{};
    for (ssize_t got = 0; (got = read(ends_[0], some.data(), some.size())) > 0;)
      out.append(some.data(), static_cast<std::size_t>(got));
    return out;
  }
  void close_reader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// Shorter ones could still find room.
const std::string kLine = std::string(999, 'x') + '\n', kLost = std::string(999, 'l') + '\n';

/// Writes lines until one of them is dropped; returns the number of those that were not.
int fill(BoundedOutput& output) {
  int lines = 0;
  while (lines < 100'000 && output.write(kLine))
    ++lines;
  return lines;
}

class OfAChannel : public testing::TestWithParam<bool> {};

TEST_P(OfAChannel, WaitsOnceForAReaderThatDoesNotReadAndThenContinues) {
  Channel channel(GetParam());
  BoundedOutput output(channel.writer(), 0.05);
  int waits = 0;

  const int lines = fill(output);
  EXPECT_LT(lines, 100'000) << "a full channel drops lines";
  EXPECT_FALSE(output.write(kLine, [&](double) { ++waits; }));

  EXPECT_EQ(waits, 0) << "only the first line waits";
  EXPECT_EQ(output.dropped(), 2);
}

TEST_P(OfAChannel, ShowsTheReaderHowManyLinesItMissed) {
  Channel channel(GetParam());
  BoundedOutput output(channel.writer(), 0.0);
  fill(output);
  output.write(kLost);
  output.write(kLost);
  const std::int64_t missed = output.dropped();
  const std::string before = channel.read_all();

  EXPECT_TRUE(output.write("read\n"));

  const std::string after = channel.read_all();
  EXPECT_EQ(missed, 3);
  EXPECT_EQ(before.find('l'), std::string::npos);
  EXPECT_TRUE(after.ends_with("(3 lines were not printed: nobody read the output)\nread\n"));
  EXPECT_NE((before + after).find("\n(3 lines"), std::string::npos)
      << "an incomplete line has an end";
  EXPECT_EQ(output.dropped(), 0);
}

TEST_P(OfAChannel, LeavesTheDescriptorBlockingForOtherPrograms) {
  Channel channel(GetParam());
  BoundedOutput output(channel.writer(), 0.0);

  output.write("text\n");

  EXPECT_EQ(fcntl(channel.writer(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(OfAChannel, ContinuesWithoutAReader) {
  Channel channel(GetParam());
  BoundedOutput output(channel.writer(), 60.0);
  std::signal(SIGPIPE, SIG_IGN);
  channel.close_reader();

  EXPECT_TRUE(output.write("text\n"));
}

INSTANTIATE_TEST_SUITE_P(Channels, OfAChannel, testing::Values(false, true));

TEST(BoundedOutput, FollowsItsDescriptorToAnotherFile) {
  Channel first(false), second(false);
  const int fd = dup(first.writer());
  BoundedOutput output(fd, 0.0);
  fill(output);

  dup2(second.writer(), fd);

  EXPECT_TRUE(output.write("here\n"));
  EXPECT_EQ(second.read_all(), "here\n");
  close(fd);
}

}  // namespace
}  // namespace tessera
