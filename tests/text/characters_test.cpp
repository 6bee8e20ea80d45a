// SPDX-License-Identifier: Apache-2.0
// UTF-8 characters, with ASCII runs that are skipped eight bytes at a time.
#include "tessera/text/tokenizers/characters.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/text/tokenizers/bert_punctuation.h"

namespace tessera::text::tokenizers {
namespace {

TEST(Characters, AsciiLengthEndsAtTheFirstOtherByte) {
  for (std::size_t ascii = 0; ascii < 20; ++ascii) {
    const std::string text = std::string(ascii, 'a') + "\xC3\xA9" + std::string(9, 'b');
    EXPECT_EQ(ascii_length(text), ascii);
    EXPECT_EQ(ascii_length(text, ascii), 0U);
    EXPECT_EQ(ascii_length(text, ascii + 2), 9U);
  }
  EXPECT_EQ(ascii_length(""), 0U);
}

TEST(Characters, ValidityIsCheckedBehindAsciiToo) {
  for (std::size_t ascii = 0; ascii < 20; ++ascii) {
    const std::string before(ascii, 'a');
    EXPECT_TRUE(is_valid_utf8(before));
    EXPECT_TRUE(is_valid_utf8(before + "\xE2\x82\xAC" + before));
    EXPECT_FALSE(is_valid_utf8(before + "\xE2\x82")) << "cut";
    EXPECT_FALSE(is_valid_utf8(before + "\x82" + before)) << "no lead";
    EXPECT_FALSE(is_valid_utf8(before + "\xED\xA0\x80")) << "surrogate";
    EXPECT_FALSE(is_valid_utf8(before + "\xC0\xAF")) << "overlong";
  }
}

TEST(Characters, NextCharacterReadsEveryLength) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  EXPECT_EQ(characters_of(text), (std::vector<char32_t>{U'a', 0xE9, 0x20AC, 0x1F600, U'z'}));
  EXPECT_EQ(count_characters(text), 5U);
}

TEST(Characters, InvalidPartsBecomeOneReplacementEach) {
  EXPECT_EQ(to_valid_utf8("ab\xE2\x82"), "ab\xEF\xBF\xBD");
  EXPECT_EQ(to_valid_utf8("\xFF\xFEz"), "\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(to_valid_utf8("plain"), "plain");
}

// Recorded from the tokenizers library 0.23.3, whose table is that of Unicode 8: how many
// characters BertPreTokenizer splits at, and some that later versions added or reclassified.
TEST(BertPunctuation, IsThatOfTheTokenizersLibrary) {
  int ascii = 0, others = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (!is_bert_punctuation(c)) continue;
    ++(c < 0x80 ? ascii : others);
    const bool reclassified = c == 0x166D || c == 0x111C9;
    EXPECT_TRUE(c < 0x80 || is_punctuation(c) || reclassified) << std::hex << std::uint32_t{c};
  }
  EXPECT_EQ(ascii, 32);
  EXPECT_EQ(others, 694);
  for (const char32_t c : {0x61D, 0x9FD, 0x2E43, 0x2E5D, 0x10EAD, 0x11944, 0x1E95E})
    EXPECT_FALSE(is_bert_punctuation(c)) << std::hex << std::uint32_t{c};
  for (const char32_t c : {0xA1, 0x2014, 0x3002, 0x166D, 0x111C9, 0x1DA8B})
    EXPECT_TRUE(is_bert_punctuation(c)) << std::hex << std::uint32_t{c};
}

}  // namespace
}  // namespace tessera::text::tokenizers
