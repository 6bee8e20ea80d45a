// SPDX-License-Identifier: Apache-2.0
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

using Sft = test::RecordTest;

const char* const kSums =
    "{\"prompt\": \"1+\", \"completion\": \"2\"}\n"
    "{\"prompt\": \"3+4+\", \"completion\": \"55\"}\n";

TEST_F(Sft, PacksTextsThatDoNotSeeEachOther) {
  const data::Datasets opened = open(*task_of("sft"), options(kSums), 12);

  ASSERT_EQ(opened.train->size(), 1);
  EXPECT_EQ(values(*opened.train, 0, "input_ids"),
            (Ids{'3', '+', '4', '+', '5', '5', 0, '1', '+', '2', 0, 0}));
  EXPECT_EQ(values(*opened.train, 0, "labels"),
            (Ids{-100, -100, -100, '5', '5', 0, -100, -100, '2', 0, -100, -100}));
  EXPECT_EQ(values(*opened.train, 0, "document_starts"),
            (Ids{0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 11}));
  EXPECT_EQ(values(*opened.train, 0, "attention_mask"), (Ids{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(opened.train_tokens, 11);
}

TEST_F(Sft, SaysThatPackedTextsAreTooFewSamples) {
  EXPECT_THAT(error_of([&] { open(*task_of("sft"), options(kSums), 12, 2); }).what(),
              HasSubstr("data.train has 2 texts, which fill 1 samples; at least 2 are needed"));
}

TEST_F(Sft, MakesASampleOfEachTextWithoutPacking) {
  data::DataOptions data = options(kSums);
  data.pack = false;

  const data::Datasets opened = open(*task_of("sft"), data, 5);

  ASSERT_EQ(opened.train->size(), 2);
  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'1', '+', '2', 0, 0}));
  EXPECT_EQ(values(*opened.train, 1, "input_ids"), (Ids{'3', '+', '4', '+', '5'}));
  const data::Datasets ends = open(*task_of("sft", R"({"truncation": "keep_end"})"), data, 5);
  EXPECT_EQ(values(*ends.train, 1, "input_ids"), (Ids{'4', '+', '5', '5', 0}));
}

TEST_F(Sft, LeavesOutRecordsWithoutATokenToLearn) {
  data::DataOptions data = options(kSums);
  data.pack = false;
  EXPECT_EQ(open(*task_of("sft"), data, 4).train->size(), 1);
}

TEST_F(Sft, LeavesOutRecordsThatEqualAnEarlierOne) {
  data::DataOptions data =
      options(std::string(kSums) + kSums + "{\"completion\": \"2\", \"prompt\": \"1-\"}\n");
  data.pack = false;
  EXPECT_EQ(open(*task_of("sft"), data, 8).train->size(), 5);

  data.drop_duplicates = true;
  const data::Datasets opened = open(*task_of("sft"), data, 8);

  ASSERT_EQ(opened.train->size(), 3);
  EXPECT_EQ(values(*opened.train, 2, "input_ids"), (Ids{'1', '-', '2', 0, 0, 0, 0, 0}));
}

TEST_F(Sft, LeavesOutTheSystemTextOfAConversation) {
  const std::string
      begin = "{\"messages\": [",
      system = R"({"role": "system", "content": "s"}, )",
      rest = R"({"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})";
  data::DataOptions with = options(begin + system + rest + "\n", "with.jsonl"),
                    without = options(begin + rest + "\n", "without.jsonl");
  with.pack = without.pack = false;

  const auto dropped =
      open(*task_of("sft", R"({"drop_system": true, "chat_template": "chatml"})"), with, 96);
  const auto kept = open(*task_of("sft", R"({"chat_template": "chatml"})"), with, 96);
  const auto expected = open(*task_of("sft", R"({"chat_template": "chatml"})"), without, 96);

  EXPECT_EQ(values(*dropped.train, 0, "input_ids"), values(*expected.train, 0, "input_ids"));
  EXPECT_EQ(values(*dropped.train, 0, "labels"), values(*expected.train, 0, "labels"));
  EXPECT_NE(values(*kept.train, 0, "input_ids"), values(*expected.train, 0, "input_ids"));
}

TEST_F(Sft, WeighsTokensByAnObjectiveOfItsOwn) {
  const auto task =
      task_of("sft", R"({"token_weights": "entropy", "token_weight_params": {"alpha": 2}})");

  EXPECT_EQ(task->objective(), "weighted_lm");
  EXPECT_EQ(task->objective_options({}).dump(), R"({"alpha":2,"weights":"entropy"})");
  EXPECT_EQ(task_of("sft")->objective(), "causal_lm");
  EXPECT_THAT(
      error_of([] { (void)task_of("sft", R"({"token_weight_params": {"alpha": 2}})"); }).what(),
      HasSubstr("token_weight_params"));
}

TEST_F(Sft, HoldsOutTextsBeforeTheyArePacked) {
  std::string records;
  for (int i = 0; i < 10; ++i)
    records += "{\"text\": \"" + std::string(static_cast<std::size_t>(1 + i), 'a') + "\"}\n";
  data::DataOptions data = options(records);
  data.validation_fraction = 0.2;

  const data::Datasets opened = open(*task_of("sft"), data, 24);

  // The last two records, of 9 and 10 letters and an end each.
  ASSERT_EQ(opened.validation->size(), 1);
  EXPECT_EQ(opened.validation_tokens, 10 + 11);
}

TEST_F(Sft, ReadsTablesUnderTheNamesOfAMap) {
  data::DataOptions data = options("question,answer\n1+1=,2\n2+2=,4\n", "sums.csv");
  data.map = json::parse(R"({"prompt": "question", "completion": "answer"})", "test");
  data.pack = false;

  EXPECT_EQ(values(*open(*task_of("sft"), data, 6).train, 1, "input_ids"),
            (Ids{'2', '+', '2', '=', '4', 0}));
}

TEST_F(Sft, ReadsTheFormThatIsAskedFor) {
  data::DataOptions data = options("{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\"}\n");
  data.pack = false;
  EXPECT_EQ(values(*open(*task_of("sft"), data, 3).train, 0, "input_ids"), (Ids{'a', 'b', 0}));
  data.format = "text";
  EXPECT_EQ(values(*open(*task_of("sft"), data, 3).train, 0, "input_ids"), (Ids{'c', 0, 0}));
  data.format = "messages";
  EXPECT_THAT(error_of([&] { open(*task_of("sft"), data, 3); }).what(),
              HasSubstr("train.jsonl:1: the record has no \"messages\""));
}

TEST_F(Sft, RefusesWordsThatItDoesNotKnow) {
  EXPECT_THAT(error_of([&] { task_of("sft", R"({"packing": "best"})"); }).what(),
              HasSubstr("task.params.packing"));
  EXPECT_THAT(error_of([&] { task_of("sft", R"({"loss_on": "user"})"); }).what(),
              HasSubstr("task.params.loss_on"));
}

}  // namespace
}  // namespace tessera::tasks
