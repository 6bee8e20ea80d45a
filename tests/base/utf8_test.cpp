// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/utf8.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera/base/text.h"

namespace tessera::text {
namespace {

using Kind = JsonEscape::Kind;

std::string utf8(char32_t code) {
  std::string out;
  append_utf8(out, code);
  return out;
}

// The first and the last characters of each length; RFC 3629, section 3.
TEST(Utf8, HasTheBytesOfTheStandard) {
  EXPECT_EQ(utf8(0), std::string(1, '\0'));
  EXPECT_EQ(utf8(0x7F), "\x7F");
  EXPECT_EQ(utf8(0x80), "\xC2\x80");
  EXPECT_EQ(utf8(0x7FF), "\xDF\xBF");
  EXPECT_EQ(utf8(0x800), "\xE0\xA0\x80");
  EXPECT_EQ(utf8(0xFFFF), "\xEF\xBF\xBF");
  EXPECT_EQ(utf8(0x10000), "\xF0\x90\x80\x80");
  EXPECT_EQ(utf8(0x10FFFF), "\xF4\x8F\xBF\xBF");
}

TEST(Utf8, OfEveryCharacterIsValid) {
  for (char32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 251) {
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    EXPECT_EQ(find_invalid_utf8(utf8(code)).has_value(), surrogate) << std::uint32_t{code};
  }
}

TEST(HexDigit, IsOfEitherCaseOrNone) {
  const std::string_view digits = "0123456789abcdef";
  for (int c = 0; c < 256; ++c) {
    const bool upper = c >= 'A' && c <= 'F';
    const std::size_t at = digits.find(static_cast<char>(upper ? c + 32 : c));
    EXPECT_EQ(hex_digit(static_cast<char>(c)),
              at == std::string_view::npos ? -1 : static_cast<int>(at));
  }
}

void expect_escape(std::string_view text, Kind kind, char32_t code, std::size_t end) {
  const JsonEscape found = read_json_escape(text, 0);
  EXPECT_EQ(found.kind, kind) << text;
  EXPECT_EQ(std::uint32_t{found.code}, std::uint32_t{code}) << text;
  EXPECT_EQ(found.end, end) << text;
}

// RFC 8259, section 7.
TEST(JsonEscapes, AreLettersCodesAndPairs) {
  expect_escape(R"(\"x)", Kind::Character, '"', 2);
  expect_escape(R"(\/)", Kind::Character, '/', 2);
  expect_escape(R"(\b)", Kind::Character, '\b', 2);
  expect_escape(R"(\u00e9!)", Kind::Character, 0xE9, 6);
  expect_escape(R"(\uFFFF)", Kind::Character, 0xFFFF, 6);
  expect_escape(R"(\ud834\udd1e)", Kind::Character, 0x1D11E, 12);
}

TEST(JsonEscapes, ThatAreWrongHaveTheirKindAndEnd) {
  expect_escape(R"(\x)", Kind::Unknown, 0, 2);
  expect_escape("\\", Kind::Unknown, 0, 1);
  expect_escape(R"(\u12g4)", Kind::BadDigits, 0, 4);
  expect_escape(R"(\u12)", Kind::BadDigits, 0, 4);
  expect_escape(R"(\udd1e)", Kind::LoneSurrogate, 0xDD1E, 6);
  expect_escape(R"(\ud834)", Kind::LoneSurrogate, 0xD834, 6);
  expect_escape(R"(\ud834\n)", Kind::LoneSurrogate, 0xD834, 6);
  // The second escape is a character of its own.
  expect_escape(R"(\ud834\u0041)", Kind::LoneSurrogate, 0xD834, 6);
  expect_escape(R"(\ud834\u00)", Kind::BadDigits, 0, 10);
}

}  // namespace
}  // namespace tessera::text
