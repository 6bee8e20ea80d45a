// SPDX-License-Identifier: Apache-2.0
// The data has the tensors that a task declares for its samples before the data is opened.
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gtest/gtest.h>

namespace tessera::tasks {
namespace {

using test::open;
using test::task_of;
using Tensors = std::vector<data::TensorSpec>;

constexpr std::int64_t kLength = 6;

/// The tensors that every sample of the records has.
Tensors opened(const Task& task, const std::string& records) {
  const test::Folder folder;
  data::DataOptions options;
  options.train = {folder.write("train.jsonl", records)};
  Tensors out;
  for (data::TensorSpec& spec : open(task, options, kLength).train->tensors()) {
    if (!spec.optional) out.push_back(std::move(spec));
  }
  return out;
}

TEST(DeclaredTensors, AreThoseOfTheData) {
  struct Case {
    const char *type, *params, *records;
  };
  for (const Case& c :
       {Case{"pretrain", "{}", "{\"text\": \"a longer text than one sample\"}\n"},
        Case{"classify", "{}", "{\"text\": \"a\", \"label\": 1}\n"},
        Case{"regression", "{}", "{\"text\": \"a\", \"label\": 0.5}\n"},
        Case{"regression", R"({"numbers": 2})", "{\"text\": \"a\", \"label\": [1, 2]}\n"},
        Case{"seq2seq", "{}", "{\"source\": \"a\", \"target\": \"b\"}\n"},
        Case{"seq2seq", R"({"target_length": 3})", "{\"source\": \"a\", \"target\": \"b\"}\n"},
        Case{"reward", "{}", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"},
        Case{"reward",
             R"({"compare": "tokens"})",
             "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"},
        Case{"rl",
             R"({"rewards": [{"type": "exact_match"}], "max_new_tokens": 4})",
             "{\"prompt\": \"a\"}\n"},
        Case{"rl",
             R"({"rewards": [{"type": "length"}], "max_new_tokens": 4, "kl": {"coefficient": 1}})",
             "{\"prompt\": \"a\"}\n"},
        Case{"tag", "{}", "{\"tokens\": [\"a\"], \"tags\": [0]}\n"}}) {
    const auto task = task_of(c.type, c.params);
    EXPECT_EQ(task->tensors(kLength), opened(*task, c.records)) << c.type << c.params;
  }
}

TEST(DeclaredTensors, AreNoneWhereTheDataDecides) {
  EXPECT_EQ(task_of("classify", R"({"multi_label": true})")->tensors(kLength), Tensors());
  EXPECT_EQ(task_of("image_classify")->tensors(kLength), Tensors());
}

// A command that is given a model and no task asks the registry of the model's objective.
TEST(TasksOfObjectives, LearnThatObjective) {
  const json::Value labels = json::parse(R"({"num_labels": 2, "labels": ["a", "b"]})", "labels");
  const auto make = [](const TaskOptions& options) {
    config::Problems problems;
    auto task = make_task(options, problems);
    problems.raise();
    return task;
  };
  for (const std::string& objective : tasks_of_objectives().names()) {
    const ObjectiveTask entry = task_of_objective(objective);
    if (entry.of_model != nullptr) {
      EXPECT_EQ(make(entry.of_model(labels, true))->objective(), objective);
      EXPECT_EQ(make(entry.of_model(labels, false))->objective(), objective);
    }
    if (!entry.trains.empty()) {
      TaskOptions options{.type = entry.trains};
      if (!entry.example.empty()) options.params = json::parse(entry.example, "example");
      EXPECT_EQ(make(options)->objective(), objective);
    }
  }
  EXPECT_TRUE(task_of_objective("of a program").trains.empty());
}

TEST(TasksOfObjectives, DistinguishClassesFromNumbers) {
  const auto of_model = task_of_objective("sequence_classification").of_model;

  const TaskOptions numbers =
      of_model(json::parse(R"({"num_labels": 3, "problem_type": "regression"})", "o"), true);
  const TaskOptions several = of_model(
      json::parse(R"({"num_labels": 1, "problem_type": "multi_label_classification"})", "o"),
      false);

  EXPECT_EQ(numbers.type, "regression");
  EXPECT_EQ(numbers.params.dump(), R"({"numbers":3})");
  EXPECT_EQ(several.type, "classify");
  EXPECT_EQ(several.params.dump(), R"({"multi_label":true})");
}

}  // namespace
}  // namespace tessera::tasks
