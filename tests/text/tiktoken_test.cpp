// SPDX-License-Identifier: Apache-2.0
// tiktoken's files of ranks against what tiktoken makes of texts with them.
#include "tessera/text/tokenizers/tiktoken.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/file_tokenizer.h"
#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path& recorded() {
  static const fs::path folder = tessera::test::source_dir() / "tests/text/tiktoken";
  return folder;
}

std::vector<Json> cases() {
  std::vector<Json> out;
  std::ifstream in(recorded() / "cases.jsonl");
  for (std::string line; std::getline(in, line);)
    out.push_back(Json::parse(line));
  EXPECT_FALSE(out.empty());
  return out;
}

class Tiktoken : public ::testing::Test {
 protected:
  /// The recorded ranks under another name.
  [[nodiscard]] fs::path named(const std::string& name) const {
    const fs::path path = folder_.path() / name;
    fs::copy_file(recorded() / "small.tiktoken", path, fs::copy_options::overwrite_existing);
    return path;
  }
  fs::path written(const std::string& name, const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
    return folder_.path() / name;
  }
  [[nodiscard]] Pipeline pipeline(const fs::path& path) const {
    return {read_tiktoken(path, Settings(path.parent_path())), path.string()};
  }
  [[nodiscard]] std::string refusal(const std::string& content) const {
    try {
      (void)pipeline(written("bad.tiktoken", content));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Format);
      return error.what();
    }
    ADD_FAILURE() << "not refused";
    return "";
  }
  files::TempDir folder_;
};

TEST_F(Tiktoken, GivesItsIdsForEachEncoding) {
  std::size_t compared = 0;
  for (const Json& one : cases()) {
    if (!one.contains("text")) continue;
    const auto name = one.at("encoding").get<std::string>(),
               text = one.at("text").get<std::string>();
    SCOPED_TRACE(name + " " + one.at("text").dump());
    const Pipeline tokenizer = pipeline(named(name + ".tiktoken"));
    std::vector<std::int32_t> ids;

    tokenizer.encode_ids(text, ids, /*special=*/false);

    EXPECT_EQ(ids, one.at("ids").get<std::vector<std::int32_t>>());
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(tokenizer.encode(text).ids.empty(), text.empty());
    ++compared;
  }
  EXPECT_GT(compared, 100U);
}

TEST_F(Tiktoken, HasTheSpecialTokensOfTheEncodingsThatItIsCalledAs) {
  for (const Json& one : cases()) {
    if (!one.contains("special")) continue;
    const auto name = one.at("encoding").get<std::string>();
    SCOPED_TRACE(name);
    const Pipeline tokenizer = pipeline(named(name + ".tiktoken"));
    for (const auto& [token, id] : one.at("special").items()) {
      // tiktoken has two names for one id there.
      if (token == "<|reserved_200018|>") continue;
      EXPECT_EQ(tokenizer.id_of(token), id.get<std::int32_t>()) << token;
      EXPECT_TRUE(tokenizer.is_special(id.get<std::int32_t>()));
    }
  }
}

TEST_F(Tiktoken, ReadsASpecialTokenInTextOnlyWhereThatIsAskedFor) {
  const Pipeline tokenizer = pipeline(named("cl100k_base.tiktoken"));
  std::vector<std::int32_t> as_text, as_token;

  tokenizer.encode_ids("<|endoftext|>", as_text, /*special=*/false);
  tokenizer.encode_ids("<|endoftext|>", as_token, /*special=*/true);

  EXPECT_GT(as_text.size(), 1U);
  EXPECT_THAT(as_token, ElementsAre(100257));
}

TEST_F(Tiktoken, TakesTheSettingsNextToAFileOfAnotherName) {
  written("tokenizer_config.json",
          R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true,
              "added_tokens_decoder": {"3000": {"content": "<s>", "special": true},
                                       "3007": {"content": "</s>", "special": true}}})");
  const FileTokenizer tokenizer(named("own.tiktoken"));

  EXPECT_EQ(tokenizer.end_of_text(), 3007);
  EXPECT_THAT(tokenizer.beginning(), ElementsAre(3000));
  EXPECT_EQ(tokenizer.size(), 3008);
}

TEST_F(Tiktoken, ReadsRanksThatAreCalledTokenizerModel) {
  written("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  const FileTokenizer tokenizer(named("tokenizer.model"));

  EXPECT_EQ(find_tokenizer_file(folder_.path()), folder_.path() / "tokenizer.model");
  EXPECT_EQ(tokenizer.end_of_text(), 3000);
  EXPECT_EQ(tokenizer.bytes_of(1), "\"") << "GPT-2's second byte";
}

TEST_F(Tiktoken, RefusesFilesThatDoNotHoldTogether) {
  const std::string whole = files::read(recorded() / "small.tiktoken");

  EXPECT_THAT(refusal(whole + "IQ==\n"), HasSubstr("3001"));
  EXPECT_THAT(refusal(whole + "IQ== x\n"), HasSubstr("a rank"));
  EXPECT_THAT(refusal(whole + "I?== 3000\n"), HasSubstr("3001"));
  EXPECT_THAT(refusal(whole + "YWJj 5\n"), HasSubstr("5"));
  EXPECT_THAT(refusal(whole + "IQ== 3000\n"), HasSubstr("twice"));
  EXPECT_THAT(refusal(whole + "IQ== 99999999999\n"), HasSubstr("99999999999"));
  EXPECT_THAT(refusal(whole.substr(whole.find('\n') + 1)), HasSubstr("0x21"));
  EXPECT_THAT(refusal(whole + std::string(4000, 'Q') + " 3000\n"), HasSubstr("3001"));
}

TEST_F(Tiktoken, IsDistinguishedFromOtherFiles) {
  EXPECT_TRUE(looks_like_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_FALSE(looks_like_tiktoken(""));
  EXPECT_FALSE(looks_like_tiktoken("{\"a\": 1}"));
  EXPECT_FALSE(looks_like_tiktoken("IQ== x\n"));
}

}  // namespace
}  // namespace tessera::text::tokenizers
