// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/task.h"

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::tasks {
namespace {

using test::error_of;
using test::task_of;
using ::testing::HasSubstr;

TEST(Tasks, AreFoundByName) {
  EXPECT_EQ(task_of("pretrain")->objective(), "causal_lm");
  EXPECT_EQ(task_of("Classify")->objective(), "sequence_classification");
}

TEST(Tasks, AreSuggestedWhereAnUnknownOneIsNamed) {
  const Error error = error_of([] { task_of("clasify"); });

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.what(), HasSubstr("unknown task \"clasify\""));
  EXPECT_THAT(error.fix(), HasSubstr("classify"));
}

TEST(Tasks, RefuseParametersThatTheyDoNotHave) {
  const Error error = error_of([] { task_of("pretrain", R"({"label_field": "x"})"); });

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.what(), HasSubstr("task.params.label_field"));
}

TEST(Tasks, AreNamedInShort) {
  json::Value config = json::parse(R"({"task": "classify"})", "test"),
              other = json::parse(R"({"task": {"type": "classify"}})", "test");

  spell_out_task(config);
  spell_out_task(other);

  EXPECT_EQ(config, other);
  EXPECT_EQ(config.find("task")->find("type")->as_string(), "classify");
}

TEST(Pretraining, OpensWhatTheDataSectionSays) {
  const test::Folder folder;
  data::DataOptions options;
  options.train = {folder.write("a.txt", "0123456789")};
  options.stride = 3;

  const data::Datasets opened = test::open(*task_of("pretrain"), options, 4);

  EXPECT_EQ(opened.train->size(), 2);  // floor((10 - 1 - 4) / 3) + 1
  EXPECT_EQ(test::values(*opened.train, 1, "input_ids"),
            (std::vector<std::int64_t>{'3', '4', '5', '6'}));
  EXPECT_EQ(opened.train->sequence_length(), 4);
}

}  // namespace
}  // namespace tessera::tasks
