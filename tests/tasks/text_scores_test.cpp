// SPDX-License-Identifier: Apache-2.0
// Scores of texts against those of rouge_score and sacrebleu (reference_text_scores.py).
#include "tessera/tasks/text_scores.h"

#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::tasks {
namespace {

/// Sums of a few logarithms in another order.
constexpr double kRounding = 1e-12;

json::Value reference() {
  const std::string path =
      tessera::test::source_dir().string() + "/tests/tasks/reference_text_scores.json";
  return json::parse_strict(files::read(path), path);
}

std::vector<WrittenText> pairs_in(const json::Value& reference) {
  std::vector<WrittenText> out;
  for (const json::Value& pair : reference.find("pairs")->items())
    out.push_back({pair.find("written")->as_string(), pair.find("expected")->as_string()});
  return out;
}

TEST(Rouge, IsThatOfRougeScore) {
  const json::Value recorded = reference();
  const std::vector<WrittenText> pairs = pairs_in(recorded);
  ASSERT_EQ(pairs.size(), 67U);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& expected = recorded.find("pairs")->items()[i].find("rouge")->items();
    const Rouge scores = rouge(pairs[i]);

    EXPECT_NEAR(scores.rouge1, expected[0].as_double(), kRounding) << pairs[i].written;
    EXPECT_NEAR(scores.rouge2, expected[1].as_double(), kRounding) << pairs[i].written;
    EXPECT_NEAR(scores.rouge_l, expected[2].as_double(), kRounding) << pairs[i].written;
  }
}

TEST(Bleu, IsThatOfSacrebleu) {
  const json::Value recorded = reference();
  const std::vector<WrittenText> pairs = pairs_in(recorded);
  for (const json::Value& corpus : recorded.find("corpora")->items()) {
    const auto first = *corpus.find("first")->as_integer(),
               last = *corpus.find("last")->as_integer();
    const std::vector<WrittenText> some(pairs.begin() + first, pairs.begin() + last);

    EXPECT_NEAR(bleu(some), corpus.find("bleu")->as_double(), 100 * kRounding)
        << first << " to " << last;
  }
}

TEST(TextScores, AreMeansAndOneBleu) {
  const std::vector<WrittenText> texts = {{" a cat\n", "a cat"}, {"a dog", "a cat"}};

  const std::vector<NamedValue> scores = text_scores(texts);

  ASSERT_EQ(scores.size(), 5U);
  EXPECT_EQ(scores[0].name, "exact_match");
  EXPECT_DOUBLE_EQ(scores[0].value, 0.5);
  EXPECT_EQ(scores[1].name, "rouge1");
  EXPECT_DOUBLE_EQ(scores[1].value, 0.75);
  EXPECT_EQ(scores[2].name, "rouge2");
  EXPECT_DOUBLE_EQ(scores[2].value, 0.5);
  EXPECT_EQ(scores[3].name, "rougeL");
  EXPECT_DOUBLE_EQ(scores[3].value, 0.75);
  EXPECT_EQ(scores[4].name, "bleu");
  EXPECT_DOUBLE_EQ(scores[4].value, bleu(texts));
  EXPECT_TRUE(text_scores({}).empty());
}

}  // namespace
}  // namespace tessera::tasks
