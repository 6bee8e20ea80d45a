// SPDX-License-Identifier: Apache-2.0
// Windows that end at the ends of documents: how many, which tokens and labels.
#include "tessera/data/windows_of_documents.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int32_t kEnd = 0;

/// A stream in memory.
class Stream final : public TokenFile {
 public:
  explicit Stream(Ids ids) : ids_(std::move(ids)) {}
  [[nodiscard]] std::int64_t tokens() const override { return std::ssize(ids_); }
  [[nodiscard]] std::int64_t sequences() const override { return 1; }
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t /*index*/) const override { return 0; }
  [[nodiscard]] std::int64_t sequence_length(std::int64_t /*index*/) const override {
    return tokens();
  }
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const override {
    TESSERA_ASSERT(begin >= 0 && count >= 0 && begin + count <= tokens());
    std::copy_n(ids_.begin() + begin, count, out);
  }
  void check_ids(std::int64_t /*vocab*/, const std::function<void()>& /*poll*/) const override {}

 private:
  Ids ids_;
};

struct Window {
  Ids ids, labels, mask;
  bool padded = false;
};
Window window_of(const WindowsOfDocuments& windows, std::int64_t index) {
  const auto length = static_cast<std::size_t>(windows.length());
  Window out{Ids(length), Ids(length), Ids(length)};
  out.padded = windows.get(index, out.ids.data(), out.labels.data(), out.mask.data());
  return out;
}

/// Documents of 5, 1 and 4 tokens, with an empty one among them, in a stream that ends without an
/// end of text.
std::shared_ptr<const TokenFile> some() {
  return std::make_shared<Stream>(Ids{11, 12, 13, 14, 15, kEnd, 21, kEnd, kEnd, 31, 32, 33, 34});
}

TEST(WindowsOfDocuments, EndWithTheirDocuments) {
  const WindowsOfDocuments windows(some(), 0, 13, 4, 4, kEnd);

  ASSERT_EQ(windows.size(), 4);
  const Window first = window_of(windows, 0), second = window_of(windows, 1),
               last = window_of(windows, 3);
  EXPECT_EQ(first.ids, (Ids{11, 12, 13, 14}));
  EXPECT_EQ(first.labels, (Ids{12, 13, 14, 15})) << "the document goes on";
  EXPECT_EQ(first.mask, Ids(4, 1));
  EXPECT_FALSE(first.padded);
  EXPECT_EQ(second.ids, (Ids{15, kEnd, kEnd, kEnd}));
  EXPECT_EQ(second.labels, (Ids{kEnd, -100, -100, -100}));
  EXPECT_EQ(second.mask, (Ids{1, 0, 0, 0}));
  EXPECT_TRUE(second.padded);
  EXPECT_EQ(window_of(windows, 2).ids, (Ids{21, kEnd, kEnd, kEnd}));
  EXPECT_EQ(last.ids, (Ids{31, 32, 33, 34}));
  EXPECT_EQ(last.labels, (Ids{32, 33, 34, kEnd})) << "the stream ends here";
}

TEST(WindowsOfDocuments, BeginAtMultiplesOfTheStrideUpToTheOneThatReachesTheEnd) {
  // Five tokens in windows of three: those from 0, 1 and 2 overlap, with a stride of four a token
  // is in none.
  const auto begins = [](std::int64_t stride) {
    const WindowsOfDocuments windows(some(), 0, 6, 3, stride, kEnd);
    Ids out;
    for (std::int64_t i = 0; i < windows.size(); ++i)
      out.push_back(window_of(windows, i).ids.front());
    return out;
  };
  EXPECT_EQ(begins(1), (Ids{11, 12, 13}));
  EXPECT_EQ(begins(2), (Ids{11, 13}));
  EXPECT_EQ(begins(3), (Ids{11, 14}));
  EXPECT_EQ(begins(4), (Ids{11, 15}));
}

TEST(WindowsOfDocuments, OfAPartOfTheStreamEndWithIt) {
  const WindowsOfDocuments windows(some(), 3, 11, 4, 4, kEnd);

  ASSERT_EQ(windows.size(), 3);
  EXPECT_EQ(window_of(windows, 0).ids, (Ids{14, 15, kEnd, kEnd}));
  EXPECT_EQ(window_of(windows, 2).ids, (Ids{31, 32, kEnd, kEnd}));
  EXPECT_EQ(window_of(windows, 2).labels, (Ids{32, kEnd, -100, -100}));
  EXPECT_EQ(windows.windows_before(3), 0);
  EXPECT_EQ(windows.windows_before(6), 1);
  EXPECT_EQ(windows.windows_before(7), 2);
  EXPECT_EQ(windows.windows_before(100), 3);
  EXPECT_EQ(WindowsOfDocuments(some(), 7, 9, 4, 4, kEnd).size(), 0);
}

// Documents may lie across the blocks in which the stream is read.
TEST(WindowsOfDocuments, OfALongStreamAreCountedExactly) {
  Ids ids;
  std::int64_t expected = 0;
  for (std::int64_t d = 0; std::ssize(ids) < 200'000; ++d) {
    const std::int64_t length = 1 + d * 7919 % 3001;
    ids.insert(ids.end(), static_cast<std::size_t>(length), 1 + d % 100);
    ids.push_back(kEnd);
    expected += (length + 511) / 512;
  }
  const std::int64_t end = std::ssize(ids);
  int polls = 0;
  const WindowsOfDocuments windows(
      std::make_shared<Stream>(ids), 0, end, 512, 512, kEnd, [&] { ++polls; });

  EXPECT_EQ(windows.size(), expected);
  EXPECT_GT(polls, 2);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < windows.size(); ++i) {
    const Window one = window_of(windows, i);
    const auto used = std::ranges::count(one.mask, 1);
    EXPECT_EQ(std::ranges::count(one.ids, one.ids.front()), used) << "one document";
    tokens += used;
  }
  EXPECT_EQ(tokens, end - std::ranges::count(ids, kEnd)) << "every token is in one window";
}

}  // namespace
}  // namespace tessera::data
