// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/tagged_words.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

const char* const kWords =
    "{\"tokens\": [\"ab\", \"c\"], \"tags\": [\"verb\", \"noun\"]}\n"
    "\n"
    "{\"tokens\": [\"d\", \"\", \"efgh\"], \"tags\": [\"noun\", \"noun\", \"verb\"]}\n";

class Tagging : public test::RecordTest {
 protected:
  std::string refusal(std::string_view records, const std::string& params = "{}") {
    return refusal_of("tag", records, 6, params).text();
  }
};

// The tokens are bytes; all words but the first follow a space, which is their first token.
TEST_F(Tagging, GivesTheTagOfAWordToItsFirstToken) {
  const data::Datasets opened = open(*task_of("tag"), options(kWords), 6);
  const data::Dataset& train = *opened.train;

  ASSERT_EQ(train.size(), 2);
  EXPECT_EQ(values(train, 0, "input_ids"), (Ids{'a', 'b', ' ', 'c', 0, 0}));
  EXPECT_EQ(values(train, 0, "labels"), (Ids{1, -100, 0, -100, -100, -100}));
  EXPECT_EQ(values(train, 0, "attention_mask"), (Ids{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(values(train, 1, "input_ids"), (Ids{'d', ' ', ' ', 'e', 'f', 'g'}));
  EXPECT_EQ(values(train, 1, "labels"), (Ids{0, 0, 1, -100, -100, -100}));
  EXPECT_FALSE(data::Sample(train, 1).has("attention_mask"));
  EXPECT_EQ(train.sequence_length(), 6);
  EXPECT_EQ(opened.train_tokens, 4 + 6);
}

// Tables have texts: words and tags with spaces between them.
TEST_F(Tagging, ReadsTextsOfWordsAndTags) {
  const data::Datasets opened = open(*task_of("tag"),
                                     options("{\"tokens\": \"ab c\", \"tags\": \"verb noun\"}\n"
                                             "{\"tokens\": \" d  e\", \"tags\": \"noun noun\"}\n"),
                                     6);
  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'a', 'b', ' ', 'c', 0, 0}));
  EXPECT_EQ(values(*opened.train, 0, "labels"), (Ids{1, -100, 0, -100, -100, -100}));
  EXPECT_EQ(values(*opened.train, 1, "input_ids"), (Ids{'d', ' ', 'e', 0, 0, 0}));
  EXPECT_THAT(refusal(R"({"tokens": "a b", "tags": "noun"})"), HasSubstr("2 words and 1 tags"));
  EXPECT_THAT(refusal(R"({"tokens": 5, "tags": "noun"})"), HasSubstr("texts with spaces"));
}

// With `predict`, a row is wanted at each word's first token.
TEST_F(Tagging, HasAPlaceForEveryWordThatIsToBeTagged) {
  const data::DataOptions data =
      options("{\"tokens\": [\"\", \"ab\", \"c\", \"defg\", \"h\"]}\n{\"tokens\": [\"x\"]}\n");
  const data::TokenizeOptions how;
  const auto opened = task_of("tag")->open_to_predict({.options = data,
                                                       .tokenizer = test::byte(),
                                                       .vocab_size = 256,
                                                       .sequence_length = 6,
                                                       .how = how,
                                                       .predict = true},
                                                      data.train);

  // " ab c " is all that has room: the first word has no token, and the last one is cut off.
  EXPECT_EQ(places_of(*opened, 0), (std::vector<std::int64_t>{-1, 0, 1, 2, -1}));
  EXPECT_EQ(places_of(*opened, 1), std::vector<std::int64_t>{0});
  EXPECT_EQ(std::ranges::count(values(*opened, 0, "labels"), 0), 3);
}

TEST_F(Tagging, GivesItsObjectiveTheNamesOfTheTags) {
  const data::DataOptions data = options(kWords);
  const auto task = task_of("tag");

  EXPECT_EQ(task->objective(), "token_classification");
  EXPECT_EQ(task->objective_options(data).dump(), R"({"num_labels":2,"labels":["noun","verb"]})");
  // Integers are classes by value.
  const char* const numbers = R"({"tokens": ["a", "b"], "tags": [3, 0]})";
  EXPECT_EQ(task_of("tag")->objective_options(options(numbers)).dump(),
            R"({"num_labels":2,"labels":["0","3"]})");
}

TEST_F(Tagging, ReadsTheFieldsAndTagsThatAreNamed) {
  const data::DataOptions data = options("{\"words\": [\"a\", \"b\"], \"ner_tags\": [\"O\", 1]}\n");
  const auto task = task_of(
      "tag", R"({"tokens_field": "words", "tags_field": "ner_tags", "labels": ["B", "I", "O"]})");

  EXPECT_EQ(values(*open(*task, data, 3).train, 0, "labels"), (Ids{2, 1, -100}));
}

TEST_F(Tagging, ReadsTheFieldNamesOfPublishedData) {
  for (const char* names : {R"("tokens": ["a", "b"], "ner_tags")",
                            R"("words": ["a", "b"], "ner")",
                            R"("tokens": ["a", "b"], "pos_tags")",
                            R"("tokens": ["a", "b"], "pos_tags": [9, 9], "ner_tags")",
                            R"("words": ["c"], "tokens": ["a", "b"], "ner": ["O"], "tags")"}) {
    const data::DataOptions data = options("{" + std::string(names) + ": [\"O\", \"B\"]}\n");

    EXPECT_EQ(values(*open(*task_of("tag"), data, 3).train, 0, "labels"), (Ids{1, 0, -100}))
        << names;
    EXPECT_EQ(values(*open(*task_of("tag"), data, 3).train, 0, "input_ids")[0], 'a') << names;
  }
}

/// Puts tokens around a text, and makes three tokens from a word of three letters.
class Surrounding final : public text::Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "surrounding"; }
  [[nodiscard]] std::int64_t size() const override { return 256; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 9; }
  void encode(std::string_view text,
              std::vector<std::int32_t>& out,
              bool /*special*/) const override {
    for (const char c : text)
      if (c != ' ') out.push_back(c);
  }
  [[nodiscard]] std::string_view bytes_of(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] std::string fingerprint() const override { return "surrounding"; }
  [[nodiscard]] std::vector<std::int32_t> beginning() const override { return {1}; }
  [[nodiscard]] std::vector<std::int32_t> ending() const override { return {2}; }
};

TEST_F(Tagging, PutsTheTokenizersTokensAroundATextThatMayBeCut) {
  TaggedWords words(6, 9, Labels::named({"x", "y"}));
  const std::string file = folder_.write("words.jsonl",
                                         "{\"text\": [\"abc\", \"d\"], \"label\": [\"y\", \"x\"]}\n"
                                         "{\"text\": [\"a\", \"bcdef\"], \"label\": [0, 1]}\n");

  words.read_files({file}, {}, {"text", "label"}, Surrounding(), {});

  EXPECT_EQ(values(words, 0, "input_ids"), (Ids{1, 'a', 'b', 'c', 'd', 2}));
  EXPECT_EQ(values(words, 0, "labels"), (Ids{-100, 1, -100, -100, 0, -100}));
  EXPECT_EQ(values(words, 1, "input_ids"), (Ids{1, 'a', 'b', 'c', 'd', 2}));
  EXPECT_EQ(values(words, 1, "labels"), (Ids{-100, 0, 1, -100, -100, -100}));
  EXPECT_EQ(words.cut(), 1);
  TaggedWords none(2, 9, Labels::named({"x"}));
  EXPECT_THROW(none.read_files({file}, {}, {"text", "label"}, Surrounding(), {}), Error);
}

TEST_F(Tagging, NamesTheRecordThatCannotBeRead) {
  const char* const kGood = "{\"tokens\": [\"a\"], \"tags\": [\"x\"]}\n";
  const auto after_a_good_one = [&](const char* record) {
    return refusal(kGood + std::string(record));
  };

  EXPECT_THAT(after_a_good_one("{\"tokens\": [\"a\", \"b\"], \"tags\": [\"x\"]}"),
              HasSubstr("train.jsonl:2: 2 words and 1 tags"));
  EXPECT_THAT(after_a_good_one("{\"tokens\": 5, \"tags\": [\"x\"]}"), HasSubstr("\"tokens\" is"));
  EXPECT_THAT(after_a_good_one("{\"tokens\": [1], \"tags\": [\"x\"]}"), HasSubstr("a word is 1"));
  EXPECT_THAT(after_a_good_one("{\"tokens\": [\"a\"], \"tags\": [1.5]}"),
              HasSubstr("the label \"tags\""));
  EXPECT_THAT(after_a_good_one("{\"tokens\": [\"a\"], \"tags\": [1]}"),
              HasSubstr("the label is an integer"));
  EXPECT_THAT(after_a_good_one("{\"tokens\": [], \"tags\": []}"), HasSubstr("has no token"));
  EXPECT_THAT(after_a_good_one("{\"word\": [\"a\"], \"tags\": [\"x\"]}"),
              HasSubstr("tokens_field"));
  EXPECT_THAT(refusal(kGood, R"({"labels": ["y"]})"), HasSubstr("the label \"x\" is not one of"));
}

TEST_F(Tagging, HoldsOutTheShareOfEveryTag) {
  std::string records;  // the rare tag is in the first records alone
  for (int i = 0; i < 20; ++i) {
    records += fmt::format("{{\"tokens\": [\"a\", \"b\"], \"tags\": [\"O\", \"{}\"]}}\n",
                           i < 4 ? "rare" : "O");
  }
  data::DataOptions data = options(records);
  data.validation_fraction = 0.25;

  const data::Datasets opened = open(*task_of("tag"), data, 6);

  ASSERT_EQ(opened.validation->size(), 5);
  int rare = 0;
  for (std::int64_t i = 0; i < 5; ++i)
    rare += static_cast<int>(std::ranges::count(values(*opened.validation, i, "labels"), 1));
  EXPECT_EQ(rare, 1);
  EXPECT_NE(opened.fingerprint, open(*task_of("tag"), options(records), 6).fingerprint);
}

}  // namespace
}  // namespace tessera::tasks
