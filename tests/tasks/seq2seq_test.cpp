// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"
#include "tessera/tasks/text_pairs.h"

namespace tessera::tasks {
namespace {

using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

// The byte tokenizer's end of text is 0.
const char* const kPairs =
    "{\"source\": \"ab\", \"target\": \"x\"}\n"
    "{\"source\": \"cdefgh\", \"target\": \"uvwxyz\"}\n"
    "\n"
    "{\"source\": \"ijk\", \"target\": \"yz\"}\n";

class SeqToSeq : public test::RecordTest {
 protected:
  Error refusal(std::string_view records, const std::string& params = "{}") {
    return refusal_of("seq2seq", records, 4, params);
  }
};

TEST_F(SeqToSeq, EndsCutsAndPadsBothTexts) {
  const data::Datasets opened =
      open(*task_of("seq2seq", R"({"target_length": 3})"), options(kPairs), 4);
  const data::Dataset& train = *opened.train;

  ASSERT_EQ(train.size(), 3);
  EXPECT_EQ(values(train, 0, "input_ids"), (Ids{'a', 'b', 0, 0}));
  EXPECT_EQ(values(train, 0, "attention_mask"), (Ids{1, 1, 1, 0}));
  EXPECT_EQ(values(train, 0, "labels"), (Ids{'x', 0, -100}));
  EXPECT_EQ(values(train, 1, "input_ids"), (Ids{'c', 'd', 'e', 0}));
  EXPECT_EQ(values(train, 1, "labels"), (Ids{'u', 'v', 0}));
  EXPECT_TRUE(data::Sample(train, 0).has("attention_mask"));
  EXPECT_FALSE(data::Sample(train, 1).has("attention_mask"));
  EXPECT_FALSE(data::Sample(train, 2).has("attention_mask"));
  EXPECT_EQ(train.sequence_length(), 4);
  EXPECT_EQ(opened.train_tokens, (3 + 4 + 4) + (2 + 3 + 3));
  EXPECT_EQ(opened.train_stats.skipped_empty, 1);
}

TEST_F(SeqToSeq, ReadsTheFieldsThatAreNamedBehindThePrefix) {
  const data::Datasets opened =
      open(*task_of("seq2seq", R"({"source_field": "q", "target_field": "a", "prefix": ">"})"),
           options("{\"q\": \"b\", \"a\": \"c\", \"source\": \"d\"}\n"),
           4);

  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'>', 'b', 0, 0}));
  EXPECT_EQ(values(*opened.train, 0, "labels"), (Ids{'c', 0, -100, -100}));
}

TEST_F(SeqToSeq, ReadsMembersOfObjects) {
  const auto read = [&](const std::string& record) {
    return open(*task_of("seq2seq", R"({"source_field": "t.en", "target_field": "t.x.ro"})"),
                options(record + "\n"),
                4);
  };
  data::Datasets opened = read(R"({"t": {"en": "b", "x": {"ro": "c"}}})");
  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'b', 0, 0, 0}));
  EXPECT_EQ(values(*opened.train, 0, "labels"), (Ids{'c', 0, -100, -100}));
  // A field of this name comes first.
  opened = read(R"({"t": {"en": "b"}, "t.en": "d", "t.x.ro": "e"})");
  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'d', 0, 0, 0}));
  EXPECT_THROW(read(R"({"t": {"en": "b", "x": "c"}})"), Error);
}

TEST_F(SeqToSeq, KeepsTheTailForValidation) {
  data::DataOptions data = options(kPairs);
  data.validation_fraction = 0.3;

  const data::Datasets opened = open(*task_of("seq2seq"), data, 4);

  ASSERT_EQ(opened.train->size(), 2);
  ASSERT_EQ(opened.validation->size(), 1);
  EXPECT_EQ(values(*opened.validation, 0, "input_ids"), (Ids{'i', 'j', 'k', 0}));
}

TEST_F(SeqToSeq, HasAnotherFingerprintForOtherTextsAndLengths) {
  const auto fingerprint = [&](std::string_view records, const std::string& params = "{}") {
    return open(*task_of("seq2seq", params), options(records), 4).fingerprint;
  };
  const std::string first = fingerprint("{\"source\": \"ab\", \"target\": \"c\"}\n");

  EXPECT_EQ(fingerprint("{\"target\": \"c\", \"source\": \"ab\"}\n"), first);
  EXPECT_NE(fingerprint("{\"source\": \"a\", \"target\": \"bc\"}\n"), first);
  EXPECT_NE(fingerprint("{\"source\": \"ab\", \"target\": \"c\"}\n", R"({"target_length": 9})"),
            first);
}

TEST_F(SeqToSeq, NamesTheLineOfABadRecord) {
  const std::string good = "{\"source\": \"a\", \"target\": \"b\"}\n";

  EXPECT_THAT(refusal(good + "[1]\n").what(),
              HasSubstr("train.jsonl:2: expected a JSON object, found an array"));
  EXPECT_THAT(refusal(good + "{\"source\": \"a\"}\n").what(),
              HasSubstr("train.jsonl:2: the record has no \"target\""));
  EXPECT_THAT(refusal(good + "{\"source\": \"a\"}\n").fix(), HasSubstr("task.params.target_field"));
  EXPECT_THAT(refusal("{\"source\": \"\", \"target\": \"b\"}\n").what(),
              HasSubstr("\"source\" is empty"));
  EXPECT_THAT(refusal("{\"source\": \"a\", \"target\": 3}\n").what(),
              HasSubstr("\"target\" is a number"));
  EXPECT_THAT(refusal(good, R"({"target": "x"})").what(), HasSubstr("target"));
}

}  // namespace
}  // namespace tessera::tasks
