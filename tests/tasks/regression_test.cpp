// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/json.h"
#include "tessera/data/records.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::open;
using test::task_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using RegressionOfTexts = test::RecordTest;

TEST_F(RegressionOfTexts, ReadsANumberForEachPairOfTexts) {
  const data::DataOptions data = options(
      "sentence1,sentence2,score\n"
      "ab,\"c,d\",2.5\n"
      "e,f,3\n",
      "train.csv");
  const auto task = task_of("regression");

  const data::Datasets opened = open(*task, data, 8);

  data::Sample sample(*opened.train, 0);
  EXPECT_THAT(sample.values<float>("label"), ElementsAre(2.5F));
  EXPECT_THAT(sample.values<std::int64_t>("input_ids"),
              ElementsAre('a', 'b', 'c', ',', 'd', 0, 0, 0));
  EXPECT_EQ(task->objective_options(data).dump(),
            R"({"num_labels":1,"problem_type":"regression"})");
}

TEST_F(RegressionOfTexts, ReadsAListOfNumbers) {
  const data::DataOptions data = options("{\"text\": \"a\", \"label\": [1, -0.5]}\n");

  data::Sample sample(*open(*task_of("regression", R"({"numbers": 2})"), data, 4).train, 0);

  EXPECT_THAT(sample.values<float>("label"), ElementsAre(1.0F, -0.5F));
}

TEST_F(RegressionOfTexts, NamesTheRecordWhoseLabelIsNotANumber) {
  const auto refusal = [&](const char* records) {
    return std::string(refusal_of("regression", records, 4).what());
  };
  EXPECT_THAT(refusal("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\", \"label\": \"x\"}\n"),
              HasSubstr("train.jsonl:2: \"label\" is \"x\""));
  EXPECT_THAT(refusal("{\"text\": \"a\", \"label\": [1, 2]}\n"), HasSubstr("has 2 numbers"));
  EXPECT_THAT(refusal("{\"text\": \"a\", \"label\": 1e39}\n"), HasSubstr("\"label\" is 1e39"));
}

TEST(NumbersOfRecords, MayBeTextsInRowsOfTables) {
  data::Record row{json::parse(R"({"a": "1.5", "b": "3 stars", "c": "1e39", "d": 2})", "a.csv"),
                   "a.csv:2",
                   /*row=*/true};
  const auto number = [&](const char* field) { return number_in(row, *row.value.find(field)); };
  EXPECT_EQ(number("a"), 1.5);
  EXPECT_EQ(number("b"), std::nullopt);
  EXPECT_EQ(number("c"), std::nullopt);  // infinite in fp32
  EXPECT_EQ(number("d"), 2.0);
  row.row = false;
  EXPECT_EQ(number("a"), std::nullopt);
  EXPECT_EQ(number("d"), 2.0);
}

}  // namespace
}  // namespace tessera::tasks
