// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/bert_vocabulary.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text::tokenizers {
namespace {

using Strings = std::vector<std::string>;

/// A folder with a vocab.txt and further files.
class Folder {
 public:
  explicit Folder(const Strings& words, const std::string& end_of_line = "\n") {
    std::string lines;
    for (const std::string& word : words)
      lines += word + end_of_line;
    write("vocab.txt", lines);
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(temp_.path() / name, std::ios::binary) << content;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return temp_.path(); }
  [[nodiscard]] Pipeline pipeline() const {
    return {read_bert_vocabulary(path() / "vocab.txt", Settings(path())), "test"};
  }
  [[nodiscard]] Strings tokens(const std::string& text) const {
    const Pipeline made = pipeline();
    Strings out;
    for (const std::int32_t id : made.encode(text, /*special=*/false).ids)
      out.push_back(made.token_of(id));
    return out;
  }

 private:
  files::TempDir temp_;
};

const Strings kWords = {"[PAD]",
                        "[UNK]",
                        "[CLS]",
                        "[SEP]",
                        "[MASK]",
                        "caf",
                        "##e",
                        "cafe",
                        "Caf",
                        "##é",
                        "co",
                        "##op",
                        "'",
                        "-",
                        "co-op"};

Strings with(Strings words, const Strings& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Error error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("no error");
}

TEST(BertVocabulary, LowersAndStripsAccentsUnlessTheConfigurationSaysOtherwise) {
  const Folder folder(kWords);
  EXPECT_EQ(folder.tokens("Café"), (Strings{"cafe"}));
  EXPECT_EQ(folder.tokens("Cafe\u0301"), (Strings{"cafe"}));

  folder.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(folder.tokens("Café"), (Strings{"Caf", "##é"}));
  // The text is composed before it is split, so that both spellings give the same word.
  EXPECT_EQ(folder.tokens("Cafe\u0301"), (Strings{"Caf", "##é"}));

  folder.write("tokenizer_config.json", R"({"do_lower_case": false, "strip_accents": true})");
  EXPECT_EQ(folder.tokens("Café"), (Strings{"Caf", "##e"}));
}

TEST(BertVocabulary, CutsWordsThatMayBeCut) {
  const Folder folder(kWords);
  EXPECT_EQ(folder.tokens("co-op"), (Strings{"co", "-", "[UNK]"}));

  folder.write("tokenizer_config.json", R"({"never_split": ["co-op"]})");
  EXPECT_EQ(folder.tokens("Co-op co-op's"), (Strings{"co-op", "co", "-", "[UNK]", "'", "[UNK]"}));

  folder.write("tokenizer_config.json", R"({"never_split": ["not-there"]})");
  EXPECT_EQ(error_of([&] { (void)folder.pipeline(); }).kind(), Error::Kind::Unsupported);
}

TEST(BertVocabulary, PutsChineseCharactersApart) {
  const Folder folder(with(kWords, {"中", "##国", "国", "\U0002B820"}));
  EXPECT_EQ(folder.tokens("中国\U0002B820\U0002B820"),
            (Strings{"中", "国", "\U0002B820", "\U0002B820"}));

  folder.write("tokenizer_config.json", R"({"tokenize_chinese_chars": false})");
  EXPECT_EQ(folder.tokens("中国"), (Strings{"中", "##国"}));
}

TEST(BertVocabulary, DropsControlAndUnassignedCharacters) {
  // Zero width space, a private one, one that is not assigned, and a byte that is not UTF-8.
  EXPECT_EQ(Folder(kWords).tokens("ca\u200Bf\uE000e\u0378\xFF\x01"), (Strings{"cafe"}));
}

TEST(BertVocabulary, TakesWordsOfMoreThanAHundredCharactersForUnknown) {
  const Folder folder(with(kWords, {"a", "##a"}));
  EXPECT_EQ(folder.tokens(std::string(100, 'a')).size(), 100U);
  EXPECT_EQ(folder.tokens(std::string(101, 'a')), (Strings{"[UNK]"}));
}

TEST(BertVocabulary, FindsSpecialTokensInTextAndGivesNewOnesTheNextIds) {
  const Folder folder(kWords);
  folder.write("tokenizer_config.json",
               R"({"additional_special_tokens": ["<Q>", {"content": "<A>"}]})");
  folder.write("added_tokens.json", R"({"Word": 20})");
  const Pipeline pipeline = folder.pipeline();
  EXPECT_EQ(pipeline.encode("cafe<A>[MASK]<Q>", false).ids,
            (std::vector<std::int32_t>{7, 22, 4, 21}));
  EXPECT_EQ(pipeline.size(), 23);
  EXPECT_TRUE(pipeline.is_special(21));
  EXPECT_FALSE(pipeline.is_special(20));
}

TEST(BertVocabulary, ReadsLinesOfAllEndsAndOfTwoEqualTokensTheLast) {
  const Folder folder(with(kWords, {"cafe"}), "\r\n");
  EXPECT_EQ(folder.pipeline().encode("cafe", false).ids, (std::vector<std::int32_t>{15}));
  EXPECT_EQ(folder.pipeline().token_of(7), "cafe");
}

TEST(BertVocabulary, RefusesWhatItCannotUse) {
  EXPECT_EQ(error_of([] { (void)Folder({"a", "b"}).pipeline(); }).kind(), Error::Kind::Format);
  EXPECT_EQ(error_of([] {
              (void)Folder({"[UNK]", "\xFF"}).pipeline();
            }).kind(),
            Error::Kind::Format);
  const Folder folder(kWords);
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "BertJapaneseTokenizer"})");
  const Error error = error_of([&] { (void)folder.pipeline(); });
  EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
  EXPECT_NE(std::string(error.what()).find("BertJapaneseTokenizer"), std::string::npos);
  folder.write("tokenizer_config.json", R"({"do_lower_case": "no"})");
  EXPECT_EQ(error_of([&] { (void)folder.pipeline(); }).kind(), Error::Kind::Format);
}

TEST(BertVocabulary, HasAFingerprintThatChangesWithItsSettings) {
  const Folder folder(kWords);
  const std::string before = tokenizer_from_folder(folder.path())->fingerprint();
  folder.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_NE(tokenizer_from_folder(folder.path())->fingerprint(), before);
}

}  // namespace
}  // namespace tessera::text::tokenizers
