// SPDX-License-Identifier: Apache-2.0
// Ids of texts as GPT2Tokenizer gives them.
#include <iostream>

#include "golden.h"
#include <gtest/gtest.h>

#include "tessera/text/tokenizer.h"

namespace tessera {
namespace {

/// The tokenizer for which a folder of cases was recorded; null if we don't have it.
text::TokenizerPtr tokenizer_of(const golden::fs::path& folder) {
  if (golden::fs::exists(folder / "vocab.json") && golden::fs::exists(folder / "merges.txt")) {
    return text::tokenizer_from_folder(folder);
  }
  const bool shipped = folder.filename().string().rfind("gpt2", 0) == 0;
  return shipped ? text::make_tokenizer({.type = "gpt2"}) : nullptr;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::int32_t> ids_in(const json::Value& list) {
  std::vector<std::int32_t> ids;
  for (const json::Value& id : list.items())
    ids.push_back(static_cast<std::int32_t>(id.as_integer().value()));
  return ids;
}

// Folders with a tokenizer.json are run by tokenizer_json_test.cpp, those with only a vocab.txt by
// vocabulary_test.cpp.
TEST(GoldenTokenizers, AreAllRun) {
  int run = 0;
  for (const auto& folder : golden::cases("tokenizers")) {
    SCOPED_TRACE(folder.filename().string());
    EXPECT_TRUE(golden::fs::exists(folder / "tokenizer.json") ||
                golden::fs::exists(folder / "vocab.txt") || tokenizer_of(folder) != nullptr);
    EXPECT_FALSE(golden::read_jsonl(folder / "cases.jsonl").empty());
    ++run;
  }
  std::cout << "ran " << run << " tokenizers\n";
}

TEST(GoldenTokenizers, EncodeAsPublishedAndDecodeToTheText) {
  int compared = 0;
  for (const auto& folder : golden::cases("tokenizers")) {
    const text::TokenizerPtr tokenizer = tokenizer_of(folder);
    if (!tokenizer) continue;
    for (const json::Value& record : golden::read_jsonl(folder / "cases.jsonl")) {
      const std::string text = from_hex(golden::at(record, "utf8_hex").as_string());
      const auto expected = ids_in(golden::at(record, "ids"));
      SCOPED_TRACE(folder.filename().string() + ": " + text);

      std::vector<std::int32_t> ids;
      tokenizer->encode(text, ids);

      EXPECT_EQ(golden::at(record, "text").as_string(), text);
      EXPECT_EQ(ids, expected);
      EXPECT_EQ(tokenizer->decode(ids), text);
      ++compared;
    }
  }

  EXPECT_GT(compared, 0) << "no case of a tokenizer that is supported in " << golden::folder();
}

}  // namespace
}  // namespace tessera
