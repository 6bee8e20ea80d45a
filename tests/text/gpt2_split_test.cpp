// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/gpt2_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include "support/text_files.h"
#include <gtest/gtest.h>
#include <pcre2.h>
#include <utf8proc.h>

namespace tessera::text {
namespace {

using test::random_text;
using test::utf8_of;

constexpr const char* kPattern =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// The pattern run by a regular expression library.
class Reference {
 public:
  explicit Reference(const char* pattern = kPattern) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern),
                          PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP,
                          &code,
                          &offset,
                          nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Reference() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // Length of the match at `from`, or -1.
  [[nodiscard]] int match(std::string_view text, std::size_t from) const {
    const int count = pcre2_match(code_,
                                  reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(),
                                  from,
                                  PCRE2_ANCHORED,
                                  match_,
                                  nullptr);
    if (count < 0) return -1;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_);
    return static_cast<int>(ends[1] - ends[0]);
  }

  [[nodiscard]] std::vector<std::string> split(std::string_view text) const {
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const int length = match(text, at);
      EXPECT_GT(length, 0) << "the pattern matches everywhere";
      if (length <= 0) break;
      pieces.emplace_back(text.substr(at, static_cast<std::size_t>(length)));
      at += static_cast<std::size_t>(length);
    }
    return pieces;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

std::vector<std::string> split(std::string_view text) {
  const Gpt2Splitter splitter(CharClasses::instance());
  std::vector<std::string> pieces;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const q = splitter.next(p, end);
    pieces.emplace_back(p, q);
    p = q;
  }
  return pieces;
}

/// Whether utf8proc, by which characters get their classes, knows `c`.
bool is_assigned(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) != UTF8PROC_CATEGORY_CN;
}

// The libraries know different versions of Unicode: characters that one of them does not have are
// left out.
bool known_to_both(const std::string& text, const Reference& unassigned) {
  for (std::size_t at = 0; at < text.size();) {
    const Decoded c = decode_utf8(text.data() + at, text.data() + text.size());
    if (!is_assigned(c.code_point) || unassigned.match(text, at) > 0) return false;
    at += static_cast<std::size_t>(c.length);
  }
  return true;
}

using Pieces = std::vector<std::string>;

TEST(Gpt2Splitter, SplitsAsTheModelsAuthorsDid) {
  EXPECT_EQ(split("Hello, world!"), (Pieces{"Hello", ",", " world", "!"}));
  EXPECT_EQ(split("I'm we'll 's"), (Pieces{"I", "'m", " we", "'ll", " '", "s"}));
  EXPECT_EQ(split("a  b   "), (Pieces{"a", " ", " b", "   "}));
  EXPECT_EQ(split("x\n\n y"), (Pieces{"x", "\n\n", " y"}));
  EXPECT_EQ(split("\n\nx"), (Pieces{"\n", "\n", "x"}));
  EXPECT_EQ(split("in 1999, 'til"), (Pieces{"in", " 1999", ",", " '", "til"}));
}

TEST(Gpt2Splitter, GivesEveryCharacterTheClassOfItsCategory) {
  const Reference letter("\\p{L}"), number("\\p{N}"), space("\\p{Xsp}"), unassigned("\\p{Cn}");
  const CharClasses& classes = CharClasses::instance();
  int compared = 0;

  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = utf8_of(c);
    // The libraries of a system know different versions of Unicode. U+180E is a space in PCRE2
    // only.
    if (!is_assigned(c) || unassigned.match(text, 0) > 0 || c == 0x180E) continue;
    const CharClass expected = letter.match(text, 0) > 0   ? CharClass::Letter
                               : number.match(text, 0) > 0 ? CharClass::Number
                               : space.match(text, 0) > 0  ? CharClass::Space
                                                           : CharClass::Other;
    ASSERT_EQ(classes.of(c), expected) << "U+" << std::hex << static_cast<unsigned>(c);
    ++compared;
  }

  EXPECT_GT(compared, 200'000);
}

TEST(Gpt2Splitter, TakesForSpacesWhatUnicodeCallsWhiteSpace) {
  const CharClasses& classes = CharClasses::instance();

  for (const char32_t c : {0x09,
                           0x0A,
                           0x0B,
                           0x0C,
                           0x0D,
                           0x20,
                           0x85,
                           0xA0,
                           0x1680,
                           0x2000,
                           0x200A,
                           0x2028,
                           0x2029,
                           0x202F,
                           0x205F,
                           0x3000}) {
    EXPECT_EQ(classes.of(c), CharClass::Space) << std::hex << static_cast<unsigned>(c);
  }
  for (const char32_t c : {0x1C, 0x1F, 0x180E, 0x200B, 0xFEFF}) {
    EXPECT_EQ(classes.of(c), CharClass::Other) << std::hex << static_cast<unsigned>(c);
  }
}

TEST(Gpt2Splitter, EqualsThePatternOnRandomText) {
  const Reference reference, unassigned("\\p{Cn}");
  std::mt19937 random(1);
  int compared = 0;

  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, 1 + static_cast<int>(random() % 40));
    if (!known_to_both(text, unassigned) || text.find("\u180E") != std::string::npos) continue;
    ASSERT_EQ(split(text), reference.split(text)) << text;
    ++compared;
  }

  EXPECT_GT(compared, 1000);
}

TEST(Gpt2Splitter, TakesInvalidBytesForPunctuation) {
  EXPECT_EQ(split("a\xFF\x80 \xC3"), (Pieces{"a", "\xFF\x80", " \xC3"}));
  EXPECT_EQ(split("\xED\xA0\x80x"), (Pieces{"\xED\xA0\x80", "x"}));  // a surrogate
  EXPECT_EQ(split("\xE4\xBD"), (Pieces{"\xE4\xBD"}));                // cut short
}

TEST(Gpt2Splitter, CutsOnlyWherePiecesEndAnyway) {
  const Gpt2Splitter splitter(CharClasses::instance());
  std::mt19937 random(2);

  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random, 30);
    const std::size_t at = splitter.cut(text, random() % (text.size() + 1));
    Pieces joined = split(std::string_view(text).substr(0, at));
    const Pieces rest = split(std::string_view(text).substr(at));
    joined.insert(joined.end(), rest.begin(), rest.end());
    ASSERT_EQ(joined, split(text)) << "cut at " << at << " of: " << text;
  }
}

}  // namespace
}  // namespace tessera::text
