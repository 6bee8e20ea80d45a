// SPDX-License-Identifier: Apache-2.0
// Tokens of texts that are tokenized while they are used, and the order in which they are read.
#include "tessera/data/streamed_tokens.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "support/text_files.h"
#include <gtest/gtest.h>

#include "tessera/data/stream_order.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using test::byte;
using test::contains;
using test::error_of;
using test::Folder;

class StreamedTokensTest : public ::testing::Test {
 protected:
  /// Five files: a text, two documents, only blank lines, a short text, and a text longer than the
  /// head of a file.
  std::vector<fs::path> files() {
    return {folder_.write("1.txt", "abc\ndefg"),
            folder_.write("2.jsonl", "{\"text\": \"hi\"}\n{\"text\": \"jklm\"}\n"),
            folder_.write("3.jsonl", "\n\n"),
            folder_.write("4.txt", "n"),
            folder_.write("5.txt", "opqrstuvw")};
  }
  static std::vector<std::int64_t> read(const TokenFile& file,
                                        std::int64_t begin,
                                        std::int64_t count) {
    std::vector<std::int64_t> out(static_cast<std::size_t>(count));
    file.read(begin, count, out.data());
    return out;
  }
  Folder folder_;
};

TEST_F(StreamedTokensTest, EqualTheTokenFileOfTheSameTexts) {
  const std::vector<fs::path> sources = files();
  const TokenizeStats stats = tokenize(sources, *byte(), folder_ / "tokens", {});
  const auto expected = TokenFile::open(folder_ / "tokens");

  for (const std::int64_t head : {0, 3, 100}) {
    const StreamedTokens streamed(sources, *byte(), {}, {.window = 1, .head = head});

    ASSERT_EQ(streamed.tokens(), expected->tokens());
    ASSERT_EQ(streamed.sequences(), expected->sequences());
    EXPECT_EQ(streamed.stats().tokens, stats.tokens);
    EXPECT_EQ(streamed.stats().documents, stats.documents);
    EXPECT_EQ(streamed.stats().skipped_empty, stats.skipped_empty);
    for (std::int64_t i = 0; i < expected->sequences(); ++i) {
      EXPECT_EQ(streamed.sequence_begin(i), expected->sequence_begin(i)) << i;
      EXPECT_EQ(streamed.sequence_length(i), expected->sequence_length(i)) << i;
    }
    // Ranges within files and over their ends, read backwards.
    for (std::int64_t count = 1; count <= expected->tokens(); ++count) {
      for (std::int64_t begin = expected->tokens() - count; begin >= 0; --begin)
        EXPECT_EQ(read(streamed, begin, count), read(*expected, begin, count)) << begin;
    }
  }
}

TEST_F(StreamedTokensTest, ReadTheBeginningOfAFileWithoutTheFile) {
  const std::vector<fs::path> sources = files();
  const StreamedTokens streamed(sources, *byte(), {}, {.window = 1, .head = 3});
  fs::remove(sources.back());

  // These are the last token before the last file, and the three tokens that always are in memory.
  const std::int64_t begin = streamed.token_begins()[4];
  EXPECT_EQ(read(streamed, begin - 1, 4), (std::vector<std::int64_t>{0, 'o', 'p', 'q'}));
  EXPECT_THROW(read(streamed, begin, 4), Error);
}

TEST_F(StreamedTokensTest, NoticeAFileThatChanges) {
  const std::vector<fs::path> sources = files();
  const StreamedTokens streamed(sources, *byte(), {}, {.window = 1, .head = 3});
  folder_.write("5.txt", "opqrstuvx");

  const Error error = error_of([&] { read(streamed, streamed.token_begins()[4], 9); });

  EXPECT_TRUE(contains(error.what(), "5.txt has changed")) << error.what();
}

TEST_F(StreamedTokensTest, AreNotMadeOfTokenFiles) {
  tokenize(files(), *byte(), folder_ / "tokens", {});

  const Error error =
      error_of([&] { StreamedTokens({folder_ / "tokens.bin"}, *byte(), {}, {.window = 1}); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "has tokens already")) << error.what();
}

TEST(StreamOrderTest, ReadsEverySampleOnceInEachEpoch) {
  const StreamOrder order({0, 5, 0, 1, 8, 3, 0}, {.seed = 5, .window = 2});
  ASSERT_EQ(order.size(), 17);
  std::vector<std::int64_t> everything(17);
  std::iota(everything.begin(), everything.end(), 0);

  for (const std::int64_t epoch : {0, 1, 0, 9}) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < order.size(); ++i)
      samples.push_back(order.at(epoch, i));
    EXPECT_NE(samples, everything);
    std::ranges::sort(samples);
    EXPECT_EQ(samples, everything) << epoch;
  }
}

}  // namespace
}  // namespace tessera::data
