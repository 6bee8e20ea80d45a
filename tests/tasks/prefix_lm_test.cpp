// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

class PrefixLanguageModel : public test::RecordTest {
 protected:
  data::DataOptions text(std::int64_t tokens) {
    std::string out;
    for (std::int64_t i = 0; i < tokens; ++i)
      out += static_cast<char>('a' + i % 26);
    return options(out, "text.txt");
  }
};

TEST_F(PrefixLanguageModel, LearnsTheTokensAfterThePrefix) {
  const data::Datasets opened = open(*task_of("prefix_lm"), text(16 * 200 + 1), 16);
  std::set<std::int64_t> lengths;

  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const Ids ids = values(*opened.train, i, "input_ids"),
              labels = values(*opened.train, i, "labels");
    const std::int64_t prefix = values(*opened.train, i, "prefix_lengths").front();
    lengths.insert(prefix);
    for (std::int64_t t = 0; t < 15; ++t) {
      const auto at = static_cast<std::size_t>(t);
      EXPECT_EQ(labels[at], t + 1 < prefix ? -100 : ids[at + 1]);
    }
  }

  // Of 200 samples each of the 15 lengths has 13 on average.
  EXPECT_EQ(lengths.size(), 15U);
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_EQ(*lengths.rbegin(), 15);
}

TEST_F(PrefixLanguageModel, KeepsThePrefixWithinTheShares) {
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"min_prefix": 0.25, "max_prefix": 0.5})"), text(3201), 16);

  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const std::int64_t prefix = values(*opened.train, i, "prefix_lengths").front();
    EXPECT_GE(prefix, 4);
    EXPECT_LE(prefix, 8);
  }
}

TEST_F(PrefixLanguageModel, CountsOnlyTheTokensOfADocument) {
  data::DataOptions data = options("{\"text\": \"abcd\"}\n{\"text\": \"e\"}\n");
  data.pack = false;
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"min_prefix": 1, "max_prefix": 1})"), data, 8);

  ASSERT_EQ(opened.train->size(), 2);
  const Ids mask = values(*opened.train, 0, "attention_mask");
  EXPECT_EQ(values(*opened.train, 0, "prefix_lengths").front(), std::ranges::count(mask, 1) - 1);
  EXPECT_EQ(values(*opened.train, 1, "prefix_lengths").front(), 1);
}

// The byte tokenizer's end of text is 0.
TEST_F(PrefixLanguageModel, GivesEachSeparateDocumentAPrefix) {
  data::DataOptions data =
      options("{\"text\": \"abcdef\"}\n{\"text\": \"ghi\"}\n{\"text\": \"jklm\"}\n");
  data.separate_documents = true;
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"min_prefix": 0.5, "max_prefix": 0.5})"), data, 11);

  ASSERT_EQ(opened.train->size(), 1);
  EXPECT_EQ(values(*opened.train, 0, "input_ids"),
            (Ids{'a', 'b', 'c', 'd', 'e', 'f', 0, 'g', 'h', 'i', 0}));
  EXPECT_EQ(values(*opened.train, 0, "document_starts"), (Ids{0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7}));
  EXPECT_EQ(values(*opened.train, 0, "prefix_lengths"), (Ids{4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2}));
  EXPECT_EQ(values(*opened.train, 0, "labels"),
            (Ids{-100, -100, -100, 'e', 'f', 0, -100, -100, 'i', 0, -100}));
}

TEST_F(PrefixLanguageModel, DrawsThePrefixesOfDocumentsIndependently) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += "{\"text\": \"abcdefghi\"}\n";
  data::DataOptions data = options(lines);
  data.separate_documents = true;
  const data::Datasets opened = open(*task_of("prefix_lm"), data, 20);

  std::set<std::int64_t> differences;
  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const Ids lengths = values(*opened.train, i, "prefix_lengths");
    differences.insert(lengths.front() - lengths.back());
  }

  EXPECT_GT(differences.size(), 3U);
}

TEST_F(PrefixLanguageModel, RefusesSharesInTheWrongOrder) {
  EXPECT_THAT(
      error_of([] { task_of("prefix_lm", R"({"min_prefix": 0.7, "max_prefix": 0.3})"); }).what(),
      HasSubstr("min_prefix"));
}

// Tokens of "ab" see each other; "cd" and the end of text are learned.
TEST_F(PrefixLanguageModel, LearnsTheCompletionsOfRecords) {
  const data::DataOptions data = options(
      "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
      "{\"prompt\": \"efg\", \"completion\": \"h\"}\n");
  const data::Datasets opened = open(*task_of("prefix_lm", R"({"records": true})"), data, 6);

  ASSERT_EQ(opened.train->size(), 2);
  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'a', 'b', 'c', 'd', 0, 0}));
  EXPECT_EQ(values(*opened.train, 0, "labels"), (Ids{-100, 'c', 'd', 0, -100, -100}));
  EXPECT_EQ(values(*opened.train, 0, "attention_mask"), (Ids{1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(values(*opened.train, 0, "prefix_lengths"), (Ids{2}));
  EXPECT_EQ(values(*opened.train, 1, "prefix_lengths"), (Ids{3}));
}

TEST_F(PrefixLanguageModel, LearnsTheLastAnswerOfAConversation) {
  const data::DataOptions data = options(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
      R"({"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})");
  data::DataOptions apart = data;
  apart.pack = false;
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"records": true, "chat_template": "chatml"})"), data, 200);
  const data::Datasets expected = open(
      *task_of("sft", R"({"loss_on": "last_assistant", "chat_template": "chatml"})"), apart, 200);

  const Ids labels = values(*opened.train, 0, "labels");
  EXPECT_EQ(labels, values(*expected.train, 0, "labels"));
  const auto first = std::ranges::find_if(labels, [](std::int64_t label) { return label >= 0; });
  EXPECT_EQ(*first, 'd');
  EXPECT_EQ(values(*opened.train, 0, "prefix_lengths").front(), first - labels.begin() + 1);
}

TEST_F(PrefixLanguageModel, RefusesKeysOfTheOtherKindOfData) {
  EXPECT_THAT(
      error_of([] { task_of("prefix_lm", R"({"records": true, "max_prefix": 0.5})"); }).what(),
      HasSubstr("max_prefix"));
  EXPECT_THAT(error_of([] { task_of("prefix_lm", R"({"chat_template": "chatml"})"); }).what(),
              HasSubstr("chat_template"));
}

}  // namespace
}  // namespace tessera::tasks
