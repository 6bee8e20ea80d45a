// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// What a training leaves can be used: each command reads the run of each task and family of each
// kind, or refuses it at once with what to do.
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"
#include "support/task_cases.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AfterTraining : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const {
    return (box_.path() / name).string();
  }
  [[nodiscard]] Outcome run(const std::vector<std::string>& words) const {
    return run_program_apart(words, box_.path());
  }
  /// Trains two steps in the folder "run"; false if the start refuses it.
  bool train(const test::TaskCase& task) {
    files::fs::remove_all(path("run"));
    const json::Value source = test::source_of(
        box_.path(), GetParam(), task, R"("eval": {"every": 1, "batches": 1, "micro_batch": 2})");
    files::write_atomic(path("c.json"), source.dump());
    const Outcome start = run({"train", path("c.json"), "-q", "--dry-run"});
    if (start.code != 0) return false;
    const Outcome o = run({"train", path("c.json"), "-q"});
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0;
  }
  /// The commands that read a run.
  [[nodiscard]] std::map<std::string, std::vector<std::string>> commands_of_a_run() const {
    return {
        {"eval", {"eval", path("run"), "-q"}},
        {"predict", {"predict", path("run"), path("data.jsonl"), "--out", path("out.jsonl"), "-q"}},
        {"generate", {"generate", path("run"), "--prompt", "ab", "--max-new-tokens", "2", "-q"}},
        {"convert", {"convert", path("run"), path("converted"), "-q"}}};
  }
  files::TempDir box_;
};

/// Commands that a task is known to serve: the table is not one of refusals.
std::set<std::string> certain_commands(const std::string& task) {
  std::set<std::string> out = {"eval", "convert"};
  if (task == "pretrain" || task == "sft" || task == "prefer" || task == "seq2seq")
    out.insert("generate");
  if (task == "classify" || task == "regression" || task == "tag" || task == "image_classify")
    out.insert("predict");
  if (task == "rl") out = {"generate", "convert"};
  return out;
}

TEST_P(AfterTraining, EachCommandReadsTheRunOrSaysWhatToDo) {
  std::map<std::string, std::set<std::string>> served;
  for (const test::TaskCase& task : test::task_cases()) {
    SCOPED_TRACE(fmt::format("{} {}", task.name, task.options));
    if (!train(task)) continue;
    served[task.name];
    for (const auto& [name, words] : commands_of_a_run()) {
      SCOPED_TRACE(name);
      files::fs::remove_all(path("converted"));
      files::fs::remove_all(path("out.jsonl"));
      const Outcome o = run(words);
      if (o.code == 0) {
        served[task.name].insert(name);
        if (name == "convert") {
          const Outcome again = run({"inspect", path("converted")});
          EXPECT_EQ(again.code, 0) << "it reads what it wrote: " << again.err;
        }
        continue;
      }
      EXPECT_THAT(o.err, AllOf(HasSubstr("fix: "), Not(HasSubstr("bug in tessera")))) << o.code;
      EXPECT_FALSE(files::fs::exists(path("converted"))) << "nothing half-written";
      EXPECT_FALSE(files::fs::exists(path("out.jsonl"))) << "nothing half-written";
    }
  }
  for (const std::string& task : test::certain_tasks(GetParam())) {
    EXPECT_TRUE(served.contains(task)) << task;
    for (const std::string& command : certain_commands(task))
      EXPECT_TRUE(served[task].contains(command)) << task << " " << command;
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         AfterTraining,
                         testing::ValuesIn(test::kinds_of_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::cli
