// SPDX-License-Identifier: Apache-2.0
// Regular expressions in Oniguruma's dialect, with the pieces that tokenizers 0.23.3 finds
// (pre_tokenizers.Split(Regex(expression), "removed", invert=True)).
#include "tessera/text/tokenizers/oniguruma.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::text::tokenizers {
namespace {

using testing::HasSubstr;
using Pieces = std::vector<std::string>;

Pieces pieces_of(const std::string& expression, std::string_view text) {
  Ranges ranges;
  regex_pattern(expression)->find(text, ranges);
  Pieces out;
  for (const auto& [begin, end] : ranges)
    out.emplace_back(text.substr(begin, end - begin));
  return out;
}

TEST(Oniguruma, HasCharacterClassesThatContainOthers) {
  constexpr std::string_view kText = "ab_-Cd 12\t]x[:é中，。^&z\u3000";
  const std::vector<std::pair<std::string, Pieces>> cases = {
      // The pattern of the tokenizer of BLOOM.
      {R"( ?[^(\s|[.,!?…。，、।۔،])]+)", {"ab_-Cd", " 12", "]x[:é中", "^&z"}},
      {R"([\w&&[^_\d]]+)", {"ab", "Cd", "x", "é中", "z"}},
      {R"([^a-c&&[a-z]]+)", {"_-Cd 12\t]x[:é中，。^&z\u3000"}},
      {R"([[a-c]-z]+)", {"ab", "-", "z"}},
      {R"([a-b[x-z]_]+)", {"ab_", "x", "z"}},
      {R"([[:alpha:]_]+)", {"ab_", "Cd", "x", "é中", "z"}},
      {R"([[^\s]&&\w]+)", {"ab_", "Cd", "12", "x", "é中", "z"}},
      {R"([^[^\w]]+)", {"ab_", "Cd", "12", "x", "é中", "z"}},
      {R"([a-z&&^x]+)", {"x"}},
      {R"([^\p{L}[0-1]]+)", {"_-", " ", "2\t]", "[:", "，。^&", "\u3000"}},
      {R"([]x]+)", {"]x"}},
      {R"([a-b[^\w]]+)", {"ab", "-", " ", "\t]", "[:", "，。^&", "\u3000"}},
  };
  for (const auto& [expression, pieces] : cases)
    EXPECT_EQ(pieces_of(expression, kText), pieces) << expression;
}

TEST(Oniguruma, RefusesClassesThatDoNotEnd) {
  const auto refusal = [](const std::string& expression) -> std::string {
    try {
      (void)to_pcre2(expression);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("[ab"), HasSubstr("not closed"));
  EXPECT_THAT(refusal("[a[b]"), HasSubstr("not closed"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("too deep"));
  EXPECT_EQ(refusal("[[[[a]]]]"), "accepted");
}

}  // namespace
}  // namespace tessera::text::tokenizers
