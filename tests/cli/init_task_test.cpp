// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/init_task.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/planner/draft.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

TEST(InitTask, KnowsEveryTaskButPretrain) {
  std::vector<std::string> known = tasks_with_configuration(), all = tasks::tasks().names();
  std::erase(all, "pretrain");
  std::ranges::sort(known);
  std::ranges::sort(all);

  EXPECT_EQ(known, all);
}

// The only thing wrong with these configurations is that there is no such model.
TEST(InitTask, WritesConfigurationsThatAreUnderstood) {
  for (const std::string& task : tasks_with_configuration()) {
    SCOPED_TRACE(task);
    const std::string page = task_configuration(task, "/no/such/folder", "");

    const planner::Draft draft =
        planner::make_draft(json::parse(page, "init.json"), 1, "init.json");

    ASSERT_FALSE(draft.problems.list().empty() && !draft.failure);
    for (const auto& problem : draft.problems.list())
      EXPECT_EQ(problem.path, "model.from") << problem.path << ": " << problem.what;
  }
}

// A user who removes the slashes before a line has a configuration.
TEST(InitTask, WritesCommentedLinesThatAreUnderstood) {
  for (const std::string key :
       {"\"adapter\": {\"type\": \"lora\", \"r\": 8, \"alpha\": 16}",
        "\"adapter\": {\"type\": \"lora\", \"r\": 8, \"alpha\": 16, \"quant"}) {
    std::string page = task_configuration("sft", "/no/such/folder", "");
    const std::size_t at = page.find("// " + key);
    ASSERT_NE(at, std::string::npos) << key;
    page.erase(at, 3);

    const planner::Draft draft =
        planner::make_draft(json::parse(page, "init.json"), 1, "init.json");

    EXPECT_TRUE(draft.config.adapter.enabled());
    for (const auto& problem : draft.problems.list())
      EXPECT_EQ(problem.path, "model.from") << problem.path << ": " << problem.what;
  }
}

// The configuration is complete but for the tokenizer, which a comment in it says how to train, and
// the pictures.
TEST(InitTask, WritesWhatAPresetIsFor) {
  for (const auto& [preset, task] : {std::pair{"bert-large-uncased", "masked_lm"},
                                     {"t5-base", "seq2seq"},
                                     {"vit-b-16", "image_classify"}}) {
    SCOPED_TRACE(preset);
    const Outcome o = run_program({"init", preset});

    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(run_program({"init", "--preset", preset}).out, o.out);
    const json::Value page = json::parse(o.out, "init.json");
    EXPECT_EQ(page.find("task")->as_string(), task);
    EXPECT_EQ(page.find("model")->find("preset")->as_string(), preset);
    EXPECT_EQ(page.find("tokenizer") != nullptr, std::string(task) != "image_classify");
    const planner::Draft draft = planner::make_draft(page, 1, "init.json");
    for (const auto& problem : draft.problems.list())
      ADD_FAILURE() << problem.path << ": " << problem.what;
  }
}

TEST(InitTask, TakesATaskForAPresetAndRefusesAModelTogetherWithIt) {
  const Outcome o = run_program({"init", "llama3-8b", "--task", "sft"});

  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr(R"({"family": "llama", "preset": "llama3-8b"})"));
  EXPECT_EQ(run_program({"init", "nano", "--task", "sft", "--from", "folder"}).code, 2);
  EXPECT_EQ(run_program({"init", "nano", "--preset", "mini"}).code, 2);
}

TEST(InitTask, NamesTheNearestTask) {
  try {
    (void)task_configuration("classfy", "m", "");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.fix(), HasSubstr("classify"));
  }
}

}  // namespace
}  // namespace tessera::cli
