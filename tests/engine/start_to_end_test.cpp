// SPDX-License-Identifier: Apache-2.0
// labels: slow
// What a dry run accepts trains, evaluates, saves and resumes; what it refuses, it refuses with one
// reason and what to type. Every task, with a family of each kind and with features that act later.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/task_cases.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluated_metrics.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/plan.h"
#include "tessera/tasks/task.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// Members that act after the start, such as at the first evaluation.
const std::map<std::string, std::string>& features() {
  static const std::map<std::string, std::string> all = {
      {"evaluations", R"("eval": {"every": 1, "batches": 1, "micro_batch": 2})"},
      {"a sample of text",
       R"("eval": {"every": 1, "batches": 1, "micro_batch": 2, "prompt": "a",
                   "max_new_tokens": 2})"},
      {"an adapter and recomputation",
       R"("eval": {"every": 1, "batches": 1, "micro_batch": 2},
          "adapter": {"type": "lora", "r": 2},
          "activation_checkpointing": {"granularity": "full"})"},
  };
  return all;
}

/// What became of a configuration.
struct End {
  std::string refused;  ///< the message of the dry run; empty: it accepts
  std::string fix;
  std::string failed;  ///< the message of what came after it; empty: all of it worked
  std::string memory;  ///< why the memory of a step is not predicted; empty: it is
};

/// Expects that eval.best may name all that an evaluation reports, and no other metric.
void expect_named(const std::vector<std::string>& names, const engine::EvalReport& report) {
  if (names.empty()) return;  // not known before the first evaluation
  std::set<std::string> reported = {"loss"};
  for (const engine::Metric& metric : report.metrics)
    reported.insert(metric.name);
  // The area under a curve exists only if several classes occur in the data.
  std::set<std::string> told(names.begin(), names.end());
  for (const std::string& name : names)
    if (name.ends_with("auc") && !reported.contains(name)) told.erase(name);
  EXPECT_EQ(told, reported);
}

/// Checks all that `tessera train --dry-run` checks, and then trains two steps with an evaluation
/// and a checkpoint, and one more from the checkpoint.
End end_of(const json::Value& source, const fs::path& folder) {
  End out;
  std::optional<planner::PlanWithData> placed;
  std::shared_ptr<const data::Datasets> data;
  try {
    const planner::Plan plan = planner::make_plan(source, 1, "c.json");
    data = engine::open_data(plan, {});
    const planner::PlacedPlan fitting =
        planner::place(planner::with_data(plan, *data), std::uint64_t{1} << 40);
    engine::check_evaluations(fitting, *data);
    out.memory = fitting.memory().unknown;
    placed = fitting;
  } catch (const Error& error) {
    out.refused = error.what();
    out.fix = error.fix();
    return out;
  }
  const planner::PlanWithData& plan = *placed;
  const fs::path saved = folder / "checkpoints";
  std::error_code ignored;
  fs::remove_all(saved, ignored);
  try {
    comm::run_threads(plan.mesh(), [&](comm::World& world) {
      at::set_num_threads(1);
      {
        const auto engine = engine::initialize(plan, world, data);
        static_cast<void>(engine->train_step());
        expect_named(engine::evaluated_metrics(plan), engine->evaluate());
        if (!plan.run().eval.prompt.empty()) static_cast<void>(engine->sample());
        static_cast<void>(engine->save(saved));
        engine->finish();
      }
      engine::Engine again(plan, world, data);
      if (data->train->made_by_model()) {
        again.initialize_weights();
        again.make_reference();
      }
      again.load(checkpoint::Checkpoint(*checkpoint::newest(saved)));
      again.begin_experience();
      static_cast<void>(again.train_step());
      again.finish();
    });
  } catch (const std::exception& error) {
    out.failed = error.what();
  }
  return out;
}

class StartToEndOfOne : public testing::Test {
 protected:
  [[nodiscard]] json::Value source_of(const std::string& family,
                                      const TaskCase& task,
                                      const std::string& feature) const {
    return test::source_of(folder_.path(), family, task, feature);
  }
  files::TempDir folder_;
};
class StartToEnd : public StartToEndOfOne, public testing::WithParamInterface<std::string> {};

TEST_P(StartToEnd, WhatADryRunAcceptsRunsToItsEnd) {
  engine::prepare_process(1);
  std::set<std::string> ran;
  for (const TaskCase& task : task_cases()) {
    for (const auto& [feature, members] : features()) {
      SCOPED_TRACE(fmt::format("{} {} with {}", task.name, task.options, feature));

      const End end = end_of(source_of(GetParam(), task, members), folder_.path());

      EXPECT_EQ(end.failed, "") << "accepted, and refused later";
      EXPECT_EQ(end.memory, "") << "the memory of a step is not predicted";
      if (end.refused.empty()) ran.insert(task.name);
      EXPECT_EQ(end.refused.empty(), end.fix.empty()) << end.refused;
    }
  }
  for (const std::string& task : certain_tasks(GetParam()))
    EXPECT_TRUE(ran.contains(task)) << task;
}

/// The first evaluation would refuse it.
TEST_F(StartToEndOfOne, AMetricThatNoEvaluationReportsIsRefusedAtTheStart) {
  engine::prepare_process(1);
  const auto refusal = [&](const std::string& metric) {
    const json::Value source = source_of(
        "gpt2", task_cases().at(10), R"("eval": {"every": 1, "best": ")" + metric + "\"}");
    const planner::Plan made = planner::make_plan(source, 1, "c.json");
    const planner::PlanWithData plan = planner::with_data(made, *engine::open_data(made, {}));
    try {
      engine::check_best_metric(plan);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string();
  };
  EXPECT_THAT(refusal("acuracy"), testing::HasSubstr("did you mean \"accuracy\""));
  for (const char* metric : {"loss", "accuracy", "f1", "matthews", "auc"})
    EXPECT_EQ(refusal(metric), "") << metric;
}

/// Samples of sixteen tokens, of which the last one has a label at `labelled`; -1: none has.
class Labelled final : public data::Dataset {
 public:
  explicit Labelled(std::int64_t labelled) : labelled_(labelled) {}
  [[nodiscard]] std::string name() const override { return "the samples"; }
  [[nodiscard]] std::int64_t size() const override { return 3; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {16}},
            {.name = "labels", .dtype = DType::I64, .shape = {16}}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    std::ranges::fill(out.tensor<std::int64_t>("input_ids"), 7);
    const auto labels = out.tensor<std::int64_t>("labels");
    std::ranges::fill(labels, -100);
    if (labelled_ >= 0 && index + 1 == size()) labels[static_cast<std::size_t>(labelled_)] = 5;
  }

 private:
  std::int64_t labelled_;
};

TEST_F(StartToEndOfOne, DataWithNothingToEvaluateIsRefusedAtTheStart) {
  const auto refusal = [&](std::int64_t labelled, const std::string& eval) {
    const planner::Plan plan =
        planner::make_plan(source_of("gpt2", task_cases().at(0), eval), 1, "c.json");
    data::Datasets data;
    data.validation = std::make_unique<Labelled>(labelled);
    try {
      engine::check_evaluations(plan, data);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string all = R"("eval": {"every": 1, "batches": 2, "micro_batch": 2})";

  EXPECT_THAT(refusal(-1, all), testing::HasSubstr("have no token to predict"));
  EXPECT_EQ(refusal(9, all), "");
  // The evaluation reads the first two samples, which have no label.
  EXPECT_THAT(refusal(9, R"("eval": {"every": 1, "batches": 1, "micro_batch": 2})"),
              testing::HasSubstr("the first 2 samples"));
}

/// The first step would refuse it.
TEST_F(StartToEndOfOne, APrefixWithABiasByDistanceIsRefusedAtTheStart) {
  engine::prepare_process(1);
  for (const char* family : {"bloom", "gemma2", "gemma3_text"}) {
    const End end =
        end_of(source_of(family, task_cases().at(1), features().at("evaluations")), folder_.path());
    EXPECT_THAT(end.refused, testing::HasSubstr("a window, chunks or ALiBi")) << family;
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         StartToEnd,
                         testing::ValuesIn(kinds_of_families()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

/// A task that is added is added here too.
TEST(StartToEndTable, HasEveryTask) {
  for (const std::string& task : tasks::tasks().names()) {
    const bool known =
        std::ranges::any_of(task_cases(), [&](const TaskCase& one) { return one.name == task; });
    EXPECT_TRUE(known) << task;
  }
}

}  // namespace
}  // namespace tessera::test
