// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/record_fields.h"

#include <filesystem>
#include <string>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

/// A folder with the file that says how a run read its records.
class RecordFields : public ::testing::Test {
 protected:
  void write(const std::string& text) {
    files::write_atomic(folder_.path() / kRecordFieldsFile, text);
  }
  std::optional<std::int64_t> use(TaskOptions& task, data::DataOptions& data) {
    return use_record_fields(folder_.path(), task, data);
  }
  files::TempDir folder_;
};

const char* const kRun = R"({
  "task": {"type": "classify", "params": {"text_field": "review", "label_field": "stars",
                                          "class_balance": "inverse", "history": null}},
  "data": {"train": ["a.csv"], "map": {"review": "body.text"}, "text_field": "text",
           "sequence_length": 48}})";

TEST_F(RecordFields, OfARunAreThoseOfItsExport) {
  write(*record_fields_text(json::parse(kRun, "run")));
  TaskOptions task{.type = "classify", .params = json::parse(R"({"label_field": "mine"})", "test")};
  data::DataOptions data;

  EXPECT_EQ(use(task, data), 48);

  EXPECT_EQ(task.params.find("text_field")->as_string(), "review");
  EXPECT_EQ(task.params.find("label_field")->as_string(), "mine") << "what is given stays";
  EXPECT_EQ(task.params.find("class_balance"), nullptr) << "belongs to the training";
  EXPECT_EQ(data.map.find("review")->as_string(), "body.text");
}

TEST_F(RecordFields, AreForTasksThatPredict) {
  EXPECT_FALSE(record_fields_text(json::parse(R"({"task": {"type": "sft"}})", "run")));
  EXPECT_FALSE(record_fields_text(json::parse(R"({"model": {}})", "run")));
  TaskOptions task{.type = "tag", .params = {}};
  data::DataOptions data;
  EXPECT_EQ(use(task, data), std::nullopt) << "there is no file";
  write(*record_fields_text(json::parse(kRun, "run")));
  EXPECT_EQ(use(task, data), std::nullopt) << "it is that of another task";
  EXPECT_TRUE(task.params.is_null());
}

TEST_F(RecordFields, RefuseAFileOfAnotherForm) {
  for (const char* text : {"[]",
                           "{}",
                           R"({"task": "classify", "params": 3})",
                           R"({"task": "classify", "text_field": 3})",
                           R"({"task": "classify", "sequence_length": 0})"}) {
    write(text);
    TaskOptions task{.type = "classify", .params = {}};
    data::DataOptions data;
    const Error error = error_of([&] { (void)use(task, data); });
    EXPECT_THAT(error.what(), HasSubstr(kRecordFieldsFile)) << text;
    EXPECT_EQ(error.kind(), Error::Kind::Format) << text;
  }
}

TEST_F(RecordFields, MayLackTheLabelInPrediction) {
  test::Folder files;
  const std::string file = files.write("new.csv", "body\nab\n");
  data::DataOptions data;
  data.map = json::parse(R"({"text": "body", "label": "stars"})", "map");
  const auto open = [&] {
    return task_of("classify")
        ->open_to_predict({.options = data,
                           .tokenizer = test::byte(),
                           .vocab_size = 256,
                           .sequence_length = 4,
                           .how = {},
                           .predict = true},
                          {file});
  };
  EXPECT_THAT(error_of([&] { (void)open(); }).what(), HasSubstr("stars"));

  data.map_may_miss = true;
  EXPECT_EQ(values(*open(), 0, "input_ids"), (test::Ids{'a', 'b', 0, 0}));
}

}  // namespace
}  // namespace tessera::tasks
