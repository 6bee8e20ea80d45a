// SPDX-License-Identifier: Apache-2.0
// Training of a tokenizer on text, compared with what the tokenizers library's trainers learn from
// it.
#include "tessera/data/tokenizer_training.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/file_tokenizer.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using text::tokenizers::learn_merges;
using text::tokenizers::LearntMerges;
using text::tokenizers::TrainedKind;
using text::tokenizers::TrainedTokenizer;
using text::tokenizers::TrainingOptions;
using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSubsetOf;

const fs::path& folder_of_reference() {
  static const fs::path folder = tessera::test::source_dir() / "tests/data/training";
  return folder;
}

/// Written by reference_training.py.
Json reference() {
  return Json::parse(files::read(folder_of_reference() / "reference.json"));
}

std::vector<fs::path> text() {
  return {folder_of_reference() / "text.txt"};
}

std::vector<std::string> tokens_of(const Json& file) {
  std::vector<std::string> out(file.at("model").at("vocab").size());
  for (const auto& [token, id] : file.at("model").at("vocab").items())
    out.at(id.get<std::size_t>()) = token;
  return out;
}

TEST(TokenizerTraining, LearnsTheLibrarysMergesAndIds) {
  const Json wanted = reference();

  const TrainedTokenizer trained = train_tokenizer(text(), {.vocab_size = 1200});

  const Json file = Json::parse(trained.tokenizer_json);
  EXPECT_EQ(tokens_of(file), wanted.at("bpe_tokens").get<std::vector<std::string>>());
  EXPECT_EQ(file.at("model").at("merges"), wanted.at("bpe_merges"));
  EXPECT_EQ(trained.tokens, 1200);
}

TEST(TokenizerTraining, WritesAFolderThatGivesTheLibrarysIds) {
  const Json wanted = reference();
  const files::TempDir folder;
  const TrainedTokenizer trained = train_tokenizer(text(), {.vocab_size = 1200});
  files::write_atomic(folder.path() / "tokenizer.json", trained.tokenizer_json);
  files::write_atomic(folder.path() / "tokenizer_config.json", trained.config_json);

  const text::FileTokenizer tokenizer(folder.path() / "tokenizer.json");

  const auto sentence = wanted.at("sentence").get<std::string>();
  std::vector<std::int32_t> ids;
  tokenizer.encode(sentence, ids, true);
  EXPECT_EQ(ids, wanted.at("bpe_ids").get<std::vector<std::int32_t>>());
  EXPECT_EQ(tokenizer.decode(ids), sentence);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
}

TEST(TokenizerTraining, LearnsTheWordPiecesThatEveryRunOfTheLibraryLearns) {
  const TrainedTokenizer trained =
      train_tokenizer(text(), {.kind = TrainedKind::WordPiece, .vocab_size = 600});

  const Json file = Json::parse(trained.tokenizer_json);
  const std::vector<std::string> tokens = tokens_of(file);
  EXPECT_EQ(tokens.size(), 600U);
  EXPECT_THAT(reference().at("word_pieces").get<std::vector<std::string>>(), IsSubsetOf(tokens));
  EXPECT_EQ(tokens.at(2), "[CLS]");
}

TEST(TokenizerTraining, FramesTextsForEncodersAsBertDoes) {
  const files::TempDir folder;
  const TrainedTokenizer trained =
      train_tokenizer(text(), {.kind = TrainedKind::WordPiece, .vocab_size = 600});
  files::write_atomic(folder.path() / "tokenizer.json", trained.tokenizer_json);
  files::write_atomic(folder.path() / "tokenizer_config.json", trained.config_json);
  const text::FileTokenizer tokenizer(folder.path() / "tokenizer.json");

  std::vector<std::int32_t> first, second;
  tokenizer.encode("the", first, true);
  tokenizer.encode("you", second, true);
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  const text::JoinedIds joined = tokenizer.join(first, second);
  EXPECT_THAT(joined.ids, ElementsAre(2, first[0], 3, second[0], 3));
  EXPECT_THAT(joined.types, ElementsAre(0, 0, 0, 1, 1));
}

TEST(TokenizerTraining, DoesNotDependOnThreads) {
  const files::TempDir folder;
  std::string much;
  const std::string some = files::read(folder_of_reference() / "text.txt");
  for (int i = 0; i < 40; ++i)  // more than one stretch of a file
    much += some;
  files::write_atomic(folder.path() / "much.txt", much);
  const std::vector<fs::path> sources = {folder.path() / "much.txt", text().front()};

  const TrainedTokenizer one = train_tokenizer(sources, {.vocab_size = 600, .threads = 1});
  const TrainedTokenizer four = train_tokenizer(sources, {.vocab_size = 600, .threads = 4});

  EXPECT_EQ(one.tokenizer_json, four.tokenizer_json);
}

/// The pairs of "aaaa" overlap, and "abc" comes of two pairs.
TEST(TokenizerTraining, MergesTheMostFrequentPairAndOfEqualsTheOneOfSmallestIds) {
  const LearntMerges learnt = learn_merges({{"aaaa", 5}, {"xabc", 4}, {"ybc", 3}, {"bcab", 2}},
                                           {.vocab_size = 100, .min_frequency = 4});

  EXPECT_THAT(learnt.tokens,
              ElementsAre("a", "b", "c", "x", "y", "aa", "bc", "aaaa", "abc", "xabc"));
  EXPECT_THAT(learnt.merges,
              ElementsAre(testing::Pair("a", "a"),
                          testing::Pair("b", "c"),
                          testing::Pair("aa", "aa"),
                          testing::Pair("a", "bc"),
                          testing::Pair("x", "abc")));
}

template <class Try>
std::string refusal_of(Try attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(TokenizerTraining, RefusesWhatItCannotLearnFrom) {
  const files::TempDir folder;
  files::write_atomic(folder.path() / "bad.txt", "fine\n\xff\xfe\n");
  files::write_atomic(folder.path() / "empty.txt", "");
  files::write_atomic(folder.path() / "lines.jsonl", "{\"text\": \"a\"}\n{\"other\": 1}\n");
  const auto refusal = [&](const char* name, TrainingOptions options = {}) {
    return refusal_of([&] { (void)train_tokenizer({folder.path() / name}, options); });
  };

  EXPECT_THAT(refusal("bad.txt"), HasSubstr("bad.txt:2: the line is not UTF-8"));
  EXPECT_THAT(refusal("empty.txt"), HasSubstr("no text to learn from"));
  EXPECT_THAT(refusal("lines.jsonl"), HasSubstr("lines.jsonl:2"));
  EXPECT_THAT(refusal_of([] { (void)train_tokenizer(text(), {.vocab_size = 100}); }),
              HasSubstr("100 tokens are too few"));
  EXPECT_THAT(refusal_of([] {
                (void)train_tokenizer(text(),
                                      {.kind = TrainedKind::WordPiece, .special = {"[UNK]"}});
              }),
              HasSubstr("has no special token [CLS]"));
}

}  // namespace
}  // namespace tessera::data
