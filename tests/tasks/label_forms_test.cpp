// SPDX-License-Identifier: Apache-2.0
// The forms in which files have labels: integers whose names are declared elsewhere, and columns of
// 0 and 1.
#include <string>
#include <vector>

#include "support/source_dir.h"
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

class LabelForms : public test::RecordTest {};

TEST_F(LabelForms, NameTheTagsOfWordsAsTheFilesOfDatasetsDo) {
  data::DataOptions data;
  data.train = {(tessera::test::source_dir() / "tests/data/columns/classes.parquet").string()};
  const auto task = task_of("tag", R"({"tags_field": "ner_tags"})");

  EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["O","X"])");
  EXPECT_EQ(values(*open(*task, data, 4).train, 1, "labels"), (Ids{0, 1, -100, -100}));
}

TEST_F(LabelForms, NamesTheClassesAsTheFilesOfDatasetsDo) {
  const std::string names = R"(["sad","glad","2","calm"])";  // the last one has no record
  const auto task = task_of("classify");
  for (const char* name : {"classes.parquet", "classes.arrow"}) {
    data::DataOptions data;
    data.train = {(tessera::test::source_dir() / "tests/data/columns" / name).string()};

    EXPECT_EQ(task->objective_options(data).find("labels")->dump(), names) << name;
    const data::Datasets opened = open(*task, data, 4);
    for (std::int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(values(*opened.train, i, "label"), Ids{i % 3}) << name;
  }
  // By the name, where other classes are given.
  data::DataOptions data;
  data.train = {(tessera::test::source_dir() / "tests/data/columns/classes.parquet").string()};
  const auto other = task_of("classify", R"({"labels": ["2", "glad", "sad"]})");
  EXPECT_EQ(values(*open(*other, data, 4).train, 0, "label"), Ids{2});
  // By the integer, where the classes have no names.
  const auto numbered = task_of("classify", R"({"labels": ["0", "1", "2", "3"]})");
  EXPECT_EQ(values(*open(*numbered, data, 4).train, 1, "label"), Ids{1});
}

TEST_F(LabelForms, NamesTheClassesAsDatasetInfoNextToTheFileDoes) {
  (void)folder_.write("dataset_info.json",
                      R"({"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"},
                          "text": {"dtype": "string", "_type": "Value"}}})");
  const data::DataOptions data = options("text,label\na,1\nb,0\n", "train.csv");

  const auto task = task_of("classify");

  EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["no","yes"])");
  EXPECT_EQ(values(*open(*task, data, 4).train, 0, "label"), Ids{1});
  const data::DataOptions wrong = options("text,label\na,2\n", "wrong.csv");
  EXPECT_THAT(error_of([&] { open(*task, wrong, 4); }).what(), HasSubstr("declares 2 classes"));
  data::DataOptions mapped = options("text,kind\na,1\nb,0\n", "mapped.csv");
  (void)folder_.write("dataset_info.json",
                      R"({"features": {"kind": {"names": ["no", "yes"], "_type": "ClassLabel"}}})");
  mapped.map = json::parse(R"({"label": "kind"})", "map");
  EXPECT_EQ(task->objective_options(mapped).find("labels")->dump(), R"(["no","yes"])");
}

TEST_F(LabelForms, ReadsSeveralLabelsFromColumnsOfZeroAndOne) {
  const std::string table =
      "id,text,angry,glad,sad\n0,ab,1,0,1\n1,cd,0,0,0\n2,ef,0,1,1\n";  // id is not a label
  const auto task = task_of("classify", R"({"multi_label": true})");
  const data::DataOptions data = options(table, "moods.csv");

  EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["angry","glad","sad"])");
  const data::Datasets opened = open(*task, data, 4);
  const auto labels_of = [&](std::int64_t index) {
    data::Sample sample(*opened.train, index);
    const auto values = sample.values<float>("label");
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(labels_of(0), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(labels_of(1), (std::vector<float>{0, 0, 0}));

  // Only the columns that are listed, in that order.
  const auto listed = task_of("classify", R"({"multi_label": true, "labels": ["sad", "angry"]})");
  const data::Datasets two = open(*listed, data, 4);
  data::Sample first(*two.train, 2);
  EXPECT_EQ(first.values<float>("label")[0], 1);
  EXPECT_EQ(first.values<float>("label")[1], 0);

  const auto refused = [&](const std::string& records) {
    const data::DataOptions bad = options(records, "bad.csv");
    return error_of([&] { open(*task, bad, 4); }).text();
  };
  EXPECT_THAT(refused("text,stars\na,3\n"), HasSubstr("task.params.labels"));
  const auto known = task_of("classify", R"({"multi_label": true, "labels": ["angry"]})");
  const data::DataOptions half = options("text,angry\na,0.5\n", "half.csv");
  EXPECT_THAT(error_of([&] { open(*known, half, 4); }).what(),
              HasSubstr("\"angry\" of a label is 0.5"));
}

}  // namespace
}  // namespace tessera::tasks
