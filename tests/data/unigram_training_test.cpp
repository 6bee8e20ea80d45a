// SPDX-License-Identifier: Apache-2.0
// Pieces of a unigram language model: by hand on small texts, and beside the published trainers.
#include "tessera/text/tokenizers/unigram_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/data/tokenizer_training.h"
#include "tessera/text/file_tokenizer.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using text::tokenizers::learn_unigram;
using text::tokenizers::PieceCounts;
using text::tokenizers::ScoredPiece;
using text::tokenizers::TrainedKind;
using text::tokenizers::TrainedTokenizer;
using text::tokenizers::TrainingOptions;
using Json = nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

/// How much longer a text may be than in the shorter of two published trainers' tokens, whose own
/// difference is some 4 %.
constexpr double kLonger = 1.02;

const fs::path& folder_of_reference() {
  static const fs::path folder = tessera::test::source_dir() / "tests/data/training";
  return folder;
}

std::vector<std::string> texts_of(const std::vector<ScoredPiece>& pieces) {
  std::vector<std::string> out;
  for (const auto& [text, score] : pieces)
    out.push_back(text);
  return out;
}

double sum_of_probabilities(const std::vector<ScoredPiece>& pieces) {
  double sum = 0;
  for (const auto& [text, score] : pieces)
    sum += std::exp(score);
  return sum;
}

/// A tokenizer that was learned from the recorded text.
class Learned {
 public:
  explicit Learned(std::int64_t tokens) {
    const TrainedTokenizer trained = train_tokenizer(
        {folder_of_reference() / "text.txt"}, {.kind = TrainedKind::Unigram, .vocab_size = tokens});
    files::write_atomic(folder_.path() / "tokenizer.json", trained.tokenizer_json);
    files::write_atomic(folder_.path() / "tokenizer_config.json", trained.config_json);
  }
  [[nodiscard]] text::FileTokenizer tokenizer() const {
    return text::FileTokenizer(folder_.path() / "tokenizer.json");
  }

 private:
  files::TempDir folder_;
};

TEST(UnigramTraining, FindsWhatManyWordsHaveInCommon) {
  PieceCounts words;
  for (const char* stem : {"walk", "talk", "jump", "play", "look", "cook", "mix", "hunt"}) {
    words[std::string("\u2581") + stem] = 10;
    words[std::string("\u2581") + stem + "ing"] = 1;
  }
  constexpr std::size_t kCharacters = 18, kMore = 9;

  const auto pieces = learn_unigram(words, {.pieces = kCharacters + kMore});

  EXPECT_THAT(texts_of(pieces), Contains("ing"));
  EXPECT_EQ(pieces.size(), kCharacters + kMore);
  EXPECT_TRUE(std::ranges::is_sorted(
      pieces, [](const auto& a, const auto& b) { return a.second > b.second; }));
}

TEST(UnigramTraining, GivesProbabilities) {
  const PieceCounts words = {{"ab", 6}, {"a", 3}, {"b", 1}};

  const auto pieces = learn_unigram(words, {.pieces = 100});

  EXPECT_THAT(texts_of(pieces), testing::ElementsAre("ab", "a", "b"));
  // digamma is below the logarithm, the more so for what is rare: the sum stays below 1.
  EXPECT_LE(sum_of_probabilities(pieces), 1.0);
  EXPECT_GT(sum_of_probabilities(pieces), 0.8);
}

TEST(UnigramTraining, KeepsEveryCharacterWhateverTheNumberOfPieces) {
  EXPECT_EQ(learn_unigram({{"abcdefgh", 5}}, {.pieces = 3}).size(), 8U);
}

TEST(UnigramTraining, DoesNotDependOnThreads) {
  PieceCounts words;
  for (const std::string& line :
       text::split(files::read(folder_of_reference() / "text.txt"), '\n')) {
    for (const std::string& word : text::split(line, ' '))
      if (!word.empty()) ++words["\u2581" + word];
  }

  const auto one = learn_unigram(words, {.pieces = 500, .threads = 1});

  EXPECT_EQ(one, learn_unigram(words, {.pieces = 500, .threads = 3}));
}

TEST(UnigramTraining, CutsTextAsShortAsPublishedTrainersDo) {
  const Json wanted = Json::parse(files::read(folder_of_reference() / "unigram.json"));
  const std::string text = files::read(folder_of_reference() / "text.txt");
  for (const auto& [size, numbers] : wanted.items()) {
    SCOPED_TRACE(size);
    const text::FileTokenizer tokenizer = Learned(std::stoll(size)).tokenizer();
    std::vector<std::int32_t> ids;
    for (const std::string& line : text::split(text, '\n'))
      tokenizer.encode(line, ids, /*special=*/false);

    EXPECT_EQ(tokenizer.size(), std::stoll(size));
    const double shortest =
        std::min(numbers.at("tokenizers").get<double>(), numbers.at("sentencepiece").get<double>());
    EXPECT_LE(static_cast<double>(ids.size()), kLonger * shortest);
  }
}

TEST(UnigramTraining, MakesATokenizerThatGivesTextBack) {
  const text::FileTokenizer tokenizer = Learned(800).tokenizer();
  std::vector<std::int32_t> ids;

  tokenizer.encode("Before we  proceed any further, hear me speak.", ids, /*special=*/false);

  EXPECT_EQ(tokenizer.decode(ids), "Before we proceed any further, hear me speak.");
  EXPECT_EQ(tokenizer.end_of_text(), 1);
  EXPECT_EQ(tokenizer.padding(), 0);
}

TEST(UnigramTraining, RefusesTooFewTokensAndASpecialTokenThatIsMissing) {
  const auto refusal = [](const TrainingOptions& options) -> std::string {
    try {
      (void)train_tokenizer({folder_of_reference() / "text.txt"}, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };

  EXPECT_THAT(refusal({.kind = TrainedKind::Unigram, .vocab_size = 20}),
              HasSubstr("20 tokens are too few"));
  EXPECT_THAT(refusal({.kind = TrainedKind::Unigram, .special = {"</s>"}}),
              HasSubstr("has no special token <unk>"));
}

}  // namespace
}  // namespace tessera::data
