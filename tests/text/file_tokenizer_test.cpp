// SPDX-License-Identifier: Apache-2.0
// Tokenizers read from a tokenizer.json, used through the interface of all tokenizers.
#include "tessera/text/file_tokenizer.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "golden/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A copy of a published tokenizer.json with further files.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::string& tokenizer)
      : path_(fs::path(testing::TempDir()) / ("file_tokenizer_" + tokenizer)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::copy_file(golden::folder() / "tokenizers" / tokenizer / "tokenizer.json",
                  path_ / "tokenizer.json");
  }
  ~TokenizerFolder() { fs::remove_all(path_); }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;
  void write(const char* name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  [[nodiscard]] fs::path file() const { return path_ / "tokenizer.json"; }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Makes `token` the end of a text, whatever the vocabulary calls so.
void name_end(const TokenizerFolder& folder, const std::string& token) {
  folder.write("tokenizer_config.json", R"({"eos_token": ")" + token + R"("})");
}

std::string end_token(const std::string& tokenizer) {
  const auto root =
      nlohmann::json::parse(read(golden::folder() / "tokenizers" / tokenizer / "tokenizer.json"));
  return root.at("added_tokens").at(0).at("content").get<std::string>();
}

constexpr const char* kNames[] = {"llama3_bpe", "qwen2_bpe", "llama2_spm"};

TEST(FileTokenizer, KnowsItsSpecialTokens) {
  for (const std::string name : {"llama3_bpe", "qwen2_bpe", "llama2_spm", "added_tokens"}) {
    SCOPED_TRACE(name);
    const TokenizerFolder folder(name);
    name_end(folder, end_token(name));
    const FileTokenizer tokenizer(folder.file());
    const auto root = nlohmann::json::parse(read(folder.file()));
    std::set<std::int32_t> special;
    // The library tells a special token by its text. "<NORM>" is found in texts as its normalizer
    // makes it, which is another one.
    for (const auto& added : root.at("added_tokens")) {
      if (added.at("special").get<bool>() && added.at("content") != "<NORM>")
        special.insert(added.at("id").get<std::int32_t>());
    }
    EXPECT_FALSE(special.empty());
    for (std::int32_t id = -1; id <= tokenizer.size(); ++id)
      EXPECT_EQ(tokenizer.is_special(id), special.contains(id)) << id;
  }
}

TEST(FileTokenizer, GivesTheRecordedIdsAndTextPieceByPiece) {
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const TokenizerFolder folder(name);
    name_end(folder, end_token(name));
    const FileTokenizer tokenizer(folder.file());
    std::ifstream cases(golden::folder() / "tokenizers" / name / "cases.jsonl");
    std::size_t compared = 0;
    for (std::string line; std::getline(cases, line);) {
      const auto one = nlohmann::json::parse(line);
      const auto text = one.at("text").get<std::string>();
      std::vector<std::int32_t> ids;
      tokenizer.encode(text, ids, /*special=*/true);
      const char* const key = one.contains("ids_without_special") ? "ids_without_special" : "ids";
      EXPECT_EQ(ids, one.at(key).get<std::vector<std::int32_t>>()) << text;

      std::string pieces;
      for (const std::int32_t id : ids)
        pieces += tokenizer.bytes_of(id);
      const std::string decoded = tokenizer.decode(ids);
      if (decoded.find("\uFFFD") != std::string::npos) continue;
      EXPECT_TRUE(pieces == decoded || pieces == " " + decoded) << pieces << "\n" << decoded;
      ++compared;
    }
    EXPECT_GT(compared, 20U);
  }
}

TEST(FileTokenizer, TakesTheEndOfATextFromTheFilesNextToIt) {
  const TokenizerFolder folder("llama3_bpe");
  folder.write("generation_config.json", R"({"eos_token_id": [7, 5]})");
  EXPECT_EQ(FileTokenizer(folder.file()).end_of_text(), 7);

  const std::string token = end_token("llama3_bpe");
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": ")" + token + R"("}})");
  const FileTokenizer named(folder.file());
  EXPECT_EQ(named.bytes_of(named.end_of_text()), token);
}

TEST(FileTokenizer, BeginsPromptsAsItsPostProcessorDoesOnce) {
  const TokenizerFolder folder("llama3_bpe");
  name_end(folder, end_token("llama3_bpe"));
  const FileTokenizer tokenizer(folder.file());
  const std::vector<std::int32_t> begin = tokenizer.beginning();
  ASSERT_EQ(begin.size(), 1U);

  const std::vector<std::int32_t> ids = tokenizer.encode_prompt("hello");
  EXPECT_EQ(ids.front(), begin.front());
  const std::string written(tokenizer.bytes_of(begin.front()));
  EXPECT_EQ(tokenizer.encode_prompt(written + "hello"), ids);
}

TEST(FileTokenizer, IsWhatAFolderWithSuchAFileHas) {
  const TokenizerFolder folder("llama2_spm");
  name_end(folder, end_token("llama2_spm"));
  const TokenizerPtr tokenizer = tokenizer_from_folder(folder.path());
  EXPECT_EQ(tokenizer->name(), "file");
  EXPECT_EQ(make_tokenizer({"file", folder.file().string(), ""})->fingerprint(),
            tokenizer->fingerprint());
}

TEST(FileTokenizer, NamesWhatItLacks) {
  const TokenizerFolder folder("llama3_bpe");
  folder.write("tokenizer.json", "[1]");
  EXPECT_THROW(FileTokenizer{folder.file()}, Error);
  try {
    (void)make_tokenizer({"file", "", ""});
    FAIL() << "no file was needed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_NE(std::string(error.what()).find("tokenizer.vocab"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::text
