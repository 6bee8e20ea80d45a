// SPDX-License-Identifier: Apache-2.0
// Text whose original bytes are tracked takes another path through the normalizers and
// pre-tokenizers than text of which only the ids are wanted; both must write the same.
#include "tessera/text/tokenizers/normalizers.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/text/tokenizers/pre_tokenizers.h"

namespace tessera::text::tokenizers {
namespace {

const char* const kText =
    " The\tQuick\x01 Br\xC3\x96wn  fox\x7F, d'\xC3\xA9t\xC3\xA9!\xE4\xB8\xAD\xE6\x96\x87 "
    "\xC4\xB0stanbul\xC2\xA0[\xE2\x80\x9Cx\xE2\x80\x9D] A\xCC\x8A.. ";

std::string normalized(const nlohmann::json& normalizer, bool tracked) {
  AlignedText text(kText, 0, tracked);
  read_normalizer(Part(normalizer, "test"))->apply(text);
  return text.str();
}

class PerCharacter : public ::testing::TestWithParam<const char*> {};

TEST_P(PerCharacter, NormalizersWriteTheSameTrackedOrNot) {
  const auto normalizer = nlohmann::json::parse(GetParam());
  EXPECT_EQ(normalized(normalizer, true), normalized(normalizer, false));
  EXPECT_NE(normalized(normalizer, false), kText);
}

INSTANTIATE_TEST_SUITE_P(Normalizers,
                         PerCharacter,
                         ::testing::Values(R"({"type": "Lowercase"})",
                                           R"({"type": "StripAccents"})",
                                           R"({"type": "Nmt"})",
                                           R"({"type": "BertNormalizer"})",
                                           R"({"type": "BertNormalizer", "lowercase": false,
                                               "clean_text": true})"));

TEST(BertPreTokenizer, KeepsWordsAndIsolatesPunctuation) {
  const auto split = read_pre_tokenizer(Part({{"type", "BertPreTokenizer"}}, "test"));
  for (const bool tracked : {false, true}) {
    std::vector<AlignedText> pieces;
    split->apply(AlignedText("  ab,c\xE2\x80\x9C"
                             "d\xC2\xA0"
                             "e?! f",
                             0,
                             tracked),
                 pieces);
    std::vector<std::string> got;
    for (const AlignedText& piece : pieces)
      got.push_back(piece.str());
    EXPECT_EQ(got,
              (std::vector<std::string>{"ab", ",", "c", "\xE2\x80\x9C", "d", "e", "?", "!", "f"}));
    if (tracked) {
      EXPECT_EQ(pieces.back().original(0, 1).begin, 16U);
    }
  }
}

}  // namespace
}  // namespace tessera::text::tokenizers
