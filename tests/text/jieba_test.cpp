// SPDX-License-Identifier: Apache-2.0
// Chinese text cut into words, against jieba, and the tokenizer of CPM's models, against
// transformers (make_jieba.py; the files in jieba/ are a part of jieba's).
#include "tessera/text/tokenizers/jieba.h"

#include <algorithm>
#include <cstdlib>
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
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/cpm.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Strings = std::vector<std::string>;

fs::path folder() {
  return tessera::test::source_dir() / "tests" / "text" / "jieba";
}

std::vector<nlohmann::json> cases() {
  std::vector<nlohmann::json> out;
  std::ifstream in(folder() / "cases.jsonl");
  for (std::string line; std::getline(in, line);)
    out.push_back(nlohmann::json::parse(line));
  return out;
}

Strings words_of(const Jieba& jieba, const std::string& text) {
  const std::vector<char32_t> characters = characters_of(text);
  Strings out;
  std::size_t at = 0;
  for (const std::size_t end : jieba.cut(characters)) {
    std::string word;
    for (; at < end; ++at)
      append_utf8(word, characters[at]);
    out.push_back(word);
  }
  EXPECT_EQ(at, characters.size());
  return out;
}

/// Sets TESSERA_JIEBA for the duration of a test.
class Dictionary {
 public:
  explicit Dictionary(const fs::path& path) {
    const char* const old = std::getenv("TESSERA_JIEBA");
    old_ = old == nullptr ? "" : old;
    ::setenv("TESSERA_JIEBA", path.c_str(), 1);
  }
  ~Dictionary() {
    if (old_.empty())
      ::unsetenv("TESSERA_JIEBA");
    else
      ::setenv("TESSERA_JIEBA", old_.c_str(), 1);
  }
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;

 private:
  std::string old_;
};

TEST(Jieba, CutsTheWordsThatJiebaCuts) {
  const Jieba jieba(folder());
  int compared = 0;
  for (const nlohmann::json& one : cases()) {
    const std::string text = one["text"];
    EXPECT_EQ(words_of(jieba, text), one["words"].get<Strings>()) << text;
    ++compared;
  }
  EXPECT_GE(compared, 30);
}

TEST(Jieba, CutsTheWordsThatJiebaCutsWithItsWholeDictionary) {
  fs::path whole;
  try {
    whole = Jieba::find();
  } catch (const Error&) {
    GTEST_SKIP() << "python3-jieba is not installed";
  }
  const Jieba jieba(whole);
  for (const nlohmann::json& one : cases()) {
    const std::string text = one["text"];
    EXPECT_EQ(words_of(jieba, text), one["all_words"].get<Strings>()) << text;
  }
}

TEST(Jieba, RefusesFilesThatAreNotJiebas) {
  const files::TempDir copy;
  const auto refusal = [&] {
    try {
      (void)Jieba(copy.path());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  fs::copy(folder(), copy.path(), fs::copy_options::recursive);
  EXPECT_EQ(refusal(), "accepted");

  files::write_atomic(copy.path() / "dict.txt", "word\n");
  EXPECT_THAT(refusal(), HasSubstr("line 1"));
  files::write_atomic(copy.path() / "dict.txt", "\xFF 3 n\n");
  EXPECT_THAT(refusal(), HasSubstr("UTF-8"));
  files::write_atomic(copy.path() / "dict.txt", "");
  EXPECT_THAT(refusal(), HasSubstr("no words"));
  files::write_atomic(copy.path() / "dict.txt", "a 1 n\n");
  for (const char* const table :
       {"", "P={", "P={'B'", "P={'B': {'\\u4e", "P={'B': {'ab': 1}}", "P={'Q': {'a': 1}}"}) {
    files::write_atomic(copy.path() / "finalseg" / "prob_emit.py", table);
    EXPECT_THAT(refusal(), HasSubstr("finalseg")) << table;
  }
  fs::remove(copy.path() / "finalseg" / "prob_emit.py");
  EXPECT_THAT(refusal(), HasSubstr("prob_emit.py"));
}

TEST(Cpm, GivesTheIdsAndTheTextOfTransformers) {
  const Dictionary part(folder());
  const FileTokenizer tokenizer(folder() / "tokenizer" / "spiece.model");
  int compared = 0;
  for (const nlohmann::json& one : cases()) {
    if (!one.contains("ids")) continue;
    const std::string text = one["text"];
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids, /*special=*/false);
    EXPECT_EQ(ids, one["ids"].get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), one["decoded"].get<std::string>());
    std::string streamed;
    for (const std::int32_t id : ids)
      streamed += tokenizer.bytes_of(id);
    EXPECT_EQ(streamed, one["decoded"].get<std::string>());
    const std::vector<std::int32_t> behind = tokenizer.ending();
    ids.insert(ids.end(), behind.begin(), behind.end());
    EXPECT_EQ(ids, one["ids_with_special"].get<std::vector<std::int32_t>>());
    ++compared;
  }
  EXPECT_GE(compared, 28);
}

TEST(Cpm, FindsSpecialTokensInTexts) {
  const Dictionary part(folder());
  const FileTokenizer tokenizer(folder() / "tokenizer" / "spiece.model");
  std::vector<std::int32_t> ids;
  tokenizer.encode("<eod>结束<eop>", ids, /*special=*/true);

  EXPECT_EQ(tokenizer.bytes_of(ids.front()), "<eod>");
  EXPECT_EQ(tokenizer.bytes_of(ids.back()), "<eop>");
}

// Data that is tokenized with another dictionary is other data.
TEST(Cpm, DependsOnTheDictionary) {
  const files::TempDir copy;
  fs::copy(folder(), copy.path(), fs::copy_options::recursive);
  const auto fingerprint = [&] {
    const Dictionary here(copy.path());
    return FileTokenizer(folder() / "tokenizer" / "spiece.model").fingerprint();
  };
  const std::string before = fingerprint();
  files::write_atomic(copy.path() / "dict.txt",
                      files::read(copy.path() / "dict.txt") + "新词 3 n\n");

  EXPECT_NE(fingerprint(), before);
}

TEST(Cpm, SaysWhereTheDictionaryComesFrom) {
  const files::TempDir empty;
  const Dictionary none(empty.path() / "nowhere");
  try {
    (void)FileTokenizer(folder() / "tokenizer" / "spiece.model");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("dict.txt"));
  }
  ::unsetenv("TESSERA_JIEBA");
  if (fs::exists("/usr/lib/python3/dist-packages/jieba/dict.txt")) return;
  try {
    (void)Jieba::find();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("apt-get install python3-jieba"));
  }
}

TEST(Cpm, ReadsATokenizerJsonWithTheSameClass) {
  const Dictionary part(folder());
  const files::TempDir json;
  files::write_atomic(json.path() / "tokenizer_config.json",
                      R"({"tokenizer_class": "CpmTokenizerFast", "eos_token": "<eod>"})");
  files::write_atomic(json.path() / "tokenizer.json",
                      R"({"added_tokens": [{"id": 3, "content": "<eod>", "special": true}],
                          "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
                          "model": {"type": "WordLevel", "unk_token": "?", "vocab":
                          {"?": 0, "南京市": 1, "长江大桥": 2}}})");
  const FileTokenizer tokenizer(json.path() / "tokenizer.json");
  std::vector<std::int32_t> ids;
  tokenizer.encode("南京市长江大桥", ids, false);

  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2}));
}

}  // namespace
}  // namespace tessera::text::tokenizers
