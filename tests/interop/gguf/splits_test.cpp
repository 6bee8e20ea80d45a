// SPDX-License-Identifier: Apache-2.0
// The rules by which published tokenizers split text have names in GGUF files, and what is read for
// a name splits as the tokenizers library does (data/make_gguf_splits.py).
#include "tessera/interop/gguf/splits.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/files.h"
#include "tessera/interop/gguf/tokenizer.h"
#include "tessera/text/tokenizers/pipeline.h"

namespace tessera::interop {
namespace {

using Json = nlohmann::json;

const Json& recorded() {
  static const Json all =
      Json::parse(files::read(tessera::test::source_dir() / "tests/interop/data/gguf_splits.json"));
  return all;
}

Json tokenizer_of(const Json& pre, const Json& normalizer, const Json& ignore_merges) {
  return {{"added_tokens", Json::array()},
          {"normalizer", normalizer},
          {"pre_tokenizer", pre},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", ignore_merges},
            {"vocab", recorded()["vocab"]},
            {"merges", recorded()["merges"]}}}};
}
Json published(const Json& one) {
  return tokenizer_of(one["pre_tokenizer"], one["normalizer"], one["ignore_merges"]);
}
/// A tokenizer.json as the reader writes it for that name.
std::optional<Json> tokenizer_of_name(const std::string& name) {
  const auto split = find_split(name);
  if (!split) return std::nullopt;
  return tokenizer_of(Json::parse(split->pre_tokenizer.dump()),
                      split->nfc ? Json{{"type", "NFC"}} : Json(),
                      split->ignore_merges);
}
std::optional<std::string> name_of(const Json& tokenizer) {
  return name_of_split(json::parse_strict(tokenizer.dump(), "tokenizer.json"));
}
std::vector<std::vector<std::int32_t>> ids_of(const Json& tokenizer) {
  const text::tokenizers::Pipeline pipeline(tokenizer, "tokenizer.json");
  std::vector<std::vector<std::int32_t>> out;
  for (const Json& text : recorded()["texts"])
    out.push_back(pipeline.encode(text.get<std::string>()).ids);
  return out;
}

TEST(GgufSplits, OfPublishedTokenizersHaveLlamaCppsNames) {
  for (const Json& one : recorded()["cases"]) {
    SCOPED_TRACE(one["files"].get<std::string>());
    EXPECT_EQ(name_of(published(one)), one["name"].get<std::string>());
    const auto written = gguf_tokenizer_of({{"tokenizer.json", published(one).dump()}},
                                           static_cast<std::int64_t>(recorded()["vocab"].size()));
    ASSERT_TRUE(written);
    EXPECT_EQ(written->pre, one["name"].get<std::string>());
    EXPECT_EQ(written->merges.size(), recorded()["merges"].size());
  }
}

TEST(GgufSplits, GiveTheIdsOfTheTokenizersLibraryForTheirNames) {
  for (const Json& one : recorded()["cases"]) {
    SCOPED_TRACE(one["files"].get<std::string>());
    const auto read = tokenizer_of_name(one["name"]);
    ASSERT_TRUE(read);
    const auto expected = one["ids"].get<std::vector<std::vector<std::int32_t>>>();
    EXPECT_EQ(ids_of(published(one)), expected);
    // With ignore_merges a word of the vocabulary is one token, and this vocabulary has words that
    // no merges make.
    Json same = *read;
    same["model"]["ignore_merges"] = one["ignore_merges"];
    EXPECT_EQ(ids_of(same), expected);
  }
}

// The tokens of the vocabulary cross boundaries, so each way of splitting gives other ids.
TEST(GgufSplits, AreTheSameForNoTwoNamesOfTheCases) {
  const Json& cases = recorded()["cases"];
  for (const Json& one : cases) {
    for (const Json& other : cases) {
      if (one["pre_tokenizer"]["type"] == "ByteLevel" || one["name"] == other["name"]) continue;
      const bool same = one["pre_tokenizer"] == other["pre_tokenizer"];
      // llama-bpe and dbrx differ in ignore_merges, others in the normalizer.
      const bool like = one["normalizer"] != other["normalizer"] ||
                        one["ignore_merges"] != other["ignore_merges"];
      if (!same && !like) {
        EXPECT_NE(one["ids"], other["ids"]) << one["name"] << other["name"];
      }
    }
  }
}

TEST(GgufSplits, AreWrittenUnderTheNameUnderWhichTheyWereRead) {
  for (const char* const name : {"gpt-2",
                                 "olmo",
                                 "smollm",
                                 "command-r",
                                 "llama-bpe",
                                 "dbrx",
                                 "qwen2",
                                 "deepseek-r1-qwen",
                                 "qwen35",
                                 "gpt-4o",
                                 "tekken",
                                 "deepseek-llm",
                                 "deepseek-coder",
                                 "deepseek-v3"}) {
    const auto read = tokenizer_of_name(name);
    ASSERT_TRUE(read) << name;
    EXPECT_EQ(name_of(*read), name);
  }
  EXPECT_EQ(name_of(*tokenizer_of_name("llama4")), "gpt-4o");
  EXPECT_EQ(name_of(*tokenizer_of_name("smaug-bpe")), "dbrx");
}

// Another way of splitting under a known name would give other tokens without a word.
TEST(GgufSplits, OfOtherRulesHaveNoName) {
  for (const Json& one : recorded()["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    Json other = published(one);
    other["normalizer"] = {{"type", "Lowercase"}};
    EXPECT_EQ(name_of(other), std::nullopt);
    if (one["pre_tokenizer"]["type"] != "Sequence") continue;
    Json& steps = (other = published(one))["pre_tokenizer"]["pretokenizers"];
    steps.push_back({{"type", "Punctuation"}});
    EXPECT_EQ(name_of(other), std::nullopt);
    Json& first = (other = published(one))["pre_tokenizer"]["pretokenizers"][0];
    if (first["type"] != "Split") continue;
    first["behavior"] = "MergedWithNext";
    EXPECT_EQ(name_of(other), std::nullopt);
    Json& changed = (other = published(one))["pre_tokenizer"]["pretokenizers"][0];
    changed["pattern"]["Regex"] = changed["pattern"]["Regex"].get<std::string>() + "|x";
    EXPECT_EQ(name_of(other), std::nullopt);
  }
  EXPECT_FALSE(find_split("no-such-split"));
}

}  // namespace
}  // namespace tessera::interop
