// SPDX-License-Identifier: Apache-2.0
// Which messages of a link count.
#include "tessera/comm/transports/authenticated_link.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Messages = std::deque<std::vector<std::byte>>;

/// Keeps what was sent where the test can change it.
class Wire final : public HostLink {
 public:
  explicit Wire(Messages& messages) : messages_(messages) {}
  [[nodiscard]] std::string_view name() const override { return "wire"; }
  void send(int /*peer*/, std::span<const Bytes> messages) override {
    for (const Bytes message : messages)
      messages_.emplace_back(message.begin(), message.end());
  }
  void receive(int /*peer*/, std::span<std::byte> message) override {
    ASSERT_FALSE(messages_.empty());
    ASSERT_LE(messages_.front().size(), message.size());
    std::copy(messages_.front().begin(), messages_.front().end(), message.begin());
    messages_.pop_front();
  }
  void close() noexcept override {}

 private:
  Messages& messages_;
};

hosts::Secret secret_of(int number) {
  hosts::Secret secret;
  secret.key[0] = static_cast<std::byte>(number);
  return secret;
}

std::map<int, LinkNonce> nonces(int first = 1) {
  LinkNonce zero{}, one{};
  zero[0] = static_cast<std::byte>(first);
  one[0] = static_cast<std::byte>(first + 1);
  return {{0, zero}, {1, one}};
}

/// Rank 0 sends to rank 1 over a wire that the test can reach.
struct Pair {
  explicit Pair(const hosts::Secret& sender = secret_of(1), int meeting = 1)
      : from(std::make_unique<Wire>(wire), 0, sender, nonces(meeting)),
        to(std::make_unique<Wire>(wire), 1, secret_of(1), nonces()) {}
  Messages wire;
  AuthenticatedLink from, to;
};

std::vector<std::byte> numbered(std::size_t bytes, int from = 0) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return out;
}
void send(HostLink& link, const std::vector<std::byte>& message) {
  const HostLink::Bytes bytes(message);
  link.send(1, {&bytes, 1});
}
std::vector<std::byte> receive(HostLink& link, std::size_t bytes) {
  std::vector<std::byte> message(bytes);
  link.receive(0, message);
  return message;
}
void expect_refused(HostLink& link, std::size_t bytes) {
  try {
    receive(link, bytes);
    FAIL() << "the message was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Comm);
    EXPECT_THAT(error.what(), HasSubstr("message of rank 0 was not sent by a rank of this job"));
  }
}

/// Sizes below, at and above those at which messages are cut.
constexpr std::size_t kPart = 1 << 20, kSmall = HostLink::kSmallBytes;
constexpr std::array<std::size_t, 9> kAllSizes = {
    0, 1, 700, kSmall, kSmall + 1, kPart, kPart + 1, kPart + kSmall + 1, 3 * kPart - 1};

/// A message that is sent with its code, and one whose code follows it.
constexpr std::array<std::size_t, 2> kSizes = {700, 100'000};

TEST(AuthenticatedLink, DeliversMessagesOfAllSizesInOrder) {
  Pair pair;
  for (const std::size_t bytes : kAllSizes)
    send(pair.from, numbered(bytes, 3));

  for (const std::size_t bytes : kAllSizes)
    EXPECT_EQ(receive(pair.to, bytes), numbered(bytes, 3));
}

TEST(AuthenticatedLink, RefusesAMessageWithoutTheSecret) {
  for (const std::size_t bytes : kSizes) {
    Pair pair(secret_of(2));
    send(pair.from, numbered(bytes));

    expect_refused(pair.to, bytes);
  }
}

TEST(AuthenticatedLink, RefusesAChangedBit) {
  for (const std::size_t bytes : kSizes) {
    for (const bool first : {true, false}) {
      Pair pair;
      send(pair.from, numbered(bytes));
      std::byte& changed = first ? pair.wire.front().front() : pair.wire.back().back();
      changed ^= std::byte{1};

      expect_refused(pair.to, bytes);
    }
  }
}

TEST(AuthenticatedLink, RefusesAnotherOrderAndARepetition) {
  Pair swapped;
  send(swapped.from, numbered(700, 1));
  send(swapped.from, numbered(700, 2));
  std::swap(swapped.wire[0], swapped.wire[1]);
  expect_refused(swapped.to, 700);

  Pair repeated;
  send(repeated.from, numbered(700));
  repeated.wire.push_back(repeated.wire.front());
  receive(repeated.to, 700);
  expect_refused(repeated.to, 700);
}

TEST(AuthenticatedLink, RefusesMessagesOfAnEarlierMeetingAndOfTheOtherDirection) {
  Pair earlier(secret_of(1), 5);
  send(earlier.from, numbered(700));
  expect_refused(earlier.to, 700);

  Pair back;
  const std::vector<std::byte> message = numbered(700);
  const HostLink::Bytes bytes(message);
  back.to.send(0, {&bytes, 1});  // rank 1 receives what it sent itself
  expect_refused(back.to, 700);
}

TEST(AuthenticatedLink, SendsASizeAndACodeOfSixteenBytesAlsoForNothing) {
  Pair pair;
  send(pair.from, {});

  ASSERT_EQ(pair.wire.size(), 1U);
  EXPECT_EQ(pair.wire.front().size(), 20U);
}

TEST(AuthenticatedLink, ReceivesSmallMessagesIntoMemoryThatHasRoomForMore) {
  Pair pair;
  const std::vector<std::byte> longer = numbered(kSmall, 3), shorter = numbered(700, 5);
  send(pair.from, longer);
  send(pair.from, shorter);
  send(pair.from, {});

  EXPECT_EQ(receive(pair.to, kSmall), longer);
  std::vector<std::byte> second = receive(pair.to, kSmall);
  second.resize(shorter.size());
  EXPECT_EQ(second, shorter);
  receive(pair.to, kSmall);
}

TEST(AuthenticatedLink, RefusesASizeThatIsNotThatOfTheMessage) {
  for (const std::uint32_t size :
       {0U, 699U, 701U, static_cast<std::uint32_t>(kSmall) + 1, 0xffffffffU}) {
    Pair pair;
    send(pair.from, numbered(700));
    std::memcpy(pair.wire.front().data(), &size, sizeof(size));

    expect_refused(pair.to, kSmall);
  }
}

TEST(AuthenticatedLink, RefusesAMessageThatIsLargerThanItsMemory) {
  Pair pair;
  send(pair.from, numbered(700));
  pair.wire.front().resize(20 + 600);

  expect_refused(pair.to, 600);
}

TEST(Partners, AreTheReceiversOfARankAndTheRanksThatItReceivesFrom) {
  const HostLayout layout{{0, 2, 5}};  // two ranks, and three

  EXPECT_THAT(partners_of(0, layout), ElementsAre(2, 4));
  EXPECT_THAT(partners_of(1, layout), ElementsAre(3));
  EXPECT_THAT(partners_of(2, layout), ElementsAre(0));
  EXPECT_THAT(partners_of(3, layout), ElementsAre(1));
  EXPECT_THAT(partners_of(4, layout), ElementsAre(0));
}

}  // namespace
}  // namespace tessera::comm
