// SPDX-License-Identifier: Apache-2.0
// Trainings that end without a gain, keep their best checkpoint and are tested with it.
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/resume.h"
#include "tessera/engine/trainer.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::TinyRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StopIn final : public Hook {
 public:
  explicit StopIn(std::int64_t step) : Hook(kMetric), step_(step) {}
  [[nodiscard]] std::string_view name() const override { return "stop in"; }
  void before_train_iter(Trainer& trainer) override {
    if (trainer.engine().step() + 1 == step_)
      trainer.engine().world().control().stop_requested = SIGTERM;
  }

 private:
  std::int64_t step_;
};

struct Result {
  int code = -1;
  std::int64_t trained = 0;  ///< to this step
  std::int64_t step = 0;     ///< the engine's step at the end
  std::string early;
};

/// A training with the hooks of `tessera train`; `stop_in`: the step of a signal.
Result train(const TinyRun& run,
             const fs::path& folder,
             const Layout& layout,
             std::int64_t stop_in = -1,
             const fs::path& resume = {}) {
  Result result;
  on_engines(
      run,
      layout,
      [&](Engine& engine) {
        Trainer trainer(engine, nullptr, folder);
        attach_defaults(trainer);
        trainer.attach(std::make_unique<StopIn>(stop_in));
        const int code = trainer.fit();
        if (engine.world().is_leader())
          result = {code, trainer.last()->step, engine.step(), trainer.early_stop()};
      },
      resume);
  return result;
}

std::vector<std::int64_t> saved(const fs::path& folder) {
  std::vector<std::int64_t> out;
  for (const fs::path& path : checkpoint::list(folder / "checkpoints"))
    out.push_back(*checkpoint::step_of(path));
  return out;
}

/// Steps of the lines of metrics.jsonl that have this key.
std::vector<std::int64_t> steps_with(const fs::path& folder, const std::string& key) {
  std::vector<std::int64_t> out;
  for (const std::string& line : text::split(files::read(folder / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const json::Value value = json::parse_strict(line, "metrics.jsonl");
    if (value.find(key) != nullptr) out.push_back(*value.find("step")->as_integer());
  }
  return out;
}

std::vector<double> values_in(const fs::path& folder, const std::string& key) {
  std::vector<double> out;
  for (const std::string& line : text::split(files::read(folder / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const json::Value value = json::parse_strict(line, "metrics.jsonl");
    if (value.find(key) != nullptr) out.push_back(value.find(key)->as_double());
  }
  return out;
}

/// The last one; 0 if there is none.
double value_in(const fs::path& folder, const std::string& key) {
  const std::vector<double> values = values_in(folder, key);
  return values.empty() ? 0.0 : values.back();
}

std::vector<std::string> digest_of(const fs::path& folder, std::int64_t step) {
  return checkpoint::Checkpoint(folder / "checkpoints" / checkpoint::step_name(step)).digest();
}

/// A training that learns, and takes a high loss for good: its first evaluation, at step 2, stays
/// the best, and it ends at step 6.
TinyRun worsening() {
  TinyRun run;
  run.set("eval.every", "2").set("eval.patience", "2");
  run.set("eval.best", R"({"metric": "loss", "mode": "max"})");
  run.set("checkpoint.keep", "1");
  return run;
}

TEST(EarlyStop, EndsASuccessfulTrainingAndKeepsTheBest) {
  const files::TempDir folder;

  const Result result = train(worsening(), folder.path(), {.ranks = 2});

  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.trained, 6);
  EXPECT_THAT(result.early, HasSubstr("2 evaluations without a gain of loss"));
  EXPECT_THAT(saved(folder.path()), ElementsAre(2, 6));
  EXPECT_EQ(files::read(folder.path() / "checkpoints/best"), "step-00000002\n");
  EXPECT_THAT(checkpoint::found_at(folder.path() / "checkpoints/best"),
              ElementsAre(folder.path() / "checkpoints/step-00000002"));
}

TEST(EarlyStop, IsWhereTheUndisturbedTrainingEnds) {
  const files::TempDir whole, halves;
  const TinyRun run = worsening();
  train(run, whole.path(), {.ranks = 2, .accumulation = 2});

  const Result first = train(run, halves.path(), {.ranks = 2, .accumulation = 2}, 5);
  EXPECT_EQ(first.code, kExitStopped);
  EXPECT_EQ(first.trained, 5);
  const Result second = train(run,
                              halves.path(),
                              {.ranks = 1, .accumulation = 4, .stage = 0},
                              -1,
                              *checkpoint::newest(halves.path() / "checkpoints"));

  EXPECT_EQ(second.trained, 6);
  EXPECT_EQ(digest_of(halves.path(), 6), digest_of(whole.path(), 6));
  EXPECT_EQ(files::read(halves.path() / "checkpoints/best"), "step-00000002\n");
}

TEST(EarlyStop, IsTheEndOfTheRunUntilThereIsMorePatience) {
  const files::TempDir folder;
  TinyRun run = worsening();
  run.set("run.dir", json::Value::string(folder.path().string()).dump());
  train(run, folder.path(), {});
  const auto found = [&] {
    const planner::Plan made = run.plan({});
    const auto data = open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    const RunFolder owned(folder.path(), RunFolder::Access::Look);
    return find_resume_point({}, owned, plan, *data).stopped_early;
  };

  EXPECT_THAT(found(), HasSubstr("stopped early at step 6"));
  run.set("eval.patience", "4");
  EXPECT_EQ(found(), "");
}

TEST(Epochs, DecideWhenToEvaluateAndToSave) {
  // 299 windows of text: an epoch has five steps of 50 windows.
  const files::TempDir folder;
  TinyRun run;
  run.set("eval.every", "\"epoch\"").set("checkpoint.every", "\"epoch\"");
  run.set("checkpoint.keep", "9").set("trainer.max_steps", "11");

  train(run, folder.path(), {.ranks = 1, .micro_batch = 50});

  EXPECT_THAT(steps_with(folder.path(), "eval_loss"), ElementsAre(5, 10, 11));
  EXPECT_THAT(saved(folder.path()), ElementsAre(5, 10, 11));
}

TEST(OnlyTheBest, IsSavedWhereNothingElseIsAskedFor) {
  const files::TempDir folder;
  TinyRun run = worsening();
  run.set("checkpoint.every", "0").set("checkpoint.final", "false");

  train(run, folder.path(), {.ranks = 2});

  EXPECT_THAT(saved(folder.path()), ElementsAre(2));
}

TEST(TestSets, AreEvaluatedWithTheBestWeights) {
  for (const Layout& layout :
       {Layout{.ranks = 1, .accumulation = 2}, Layout{.ranks = 2, .accumulation = 1, .stage = 3}}) {
    SCOPED_TRACE(layout.ranks);
    const files::TempDir folder;
    TinyRun run = worsening();
    const std::string text = files::read(run.folder() / "text.txt").substr(0, 700);
    files::write_atomic(run.folder() / "test.txt", text);
    run.set("data.test", json::Value::string((run.folder() / "test.txt").string()).dump());

    const Result result = train(run, folder.path(), layout);

    EXPECT_EQ(result.trained, 6);
    EXPECT_EQ(result.step, 2);
    EXPECT_THAT(steps_with(folder.path(), "test_loss"), ElementsAre(2));
    double best = 0.0, last = 0.0;
    const auto measure = [&](std::int64_t step, double& loss) {
      on_engines(
          run,
          {},
          [&](Engine& engine) { loss = engine.evaluator().evaluate_test().loss; },
          folder.path() / "checkpoints" / checkpoint::step_name(step));
    };
    measure(2, best);
    measure(6, last);
    EXPECT_EQ(value_in(folder.path(), "test_loss"), best);
    EXPECT_NE(best, last);
  }
}

TEST(TestSets, AreAlsoEvaluatedAfterEachEpochAndChangeNothing) {
  // An epoch has five steps, as in the test Epochs.
  const files::TempDir tested, once;
  TinyRun run;
  run.set("eval.every", "\"epoch\"").set("checkpoint.keep", "9");
  run.set("checkpoint.every", "\"epoch\"").set("trainer.max_steps", "10");
  files::write_atomic(run.folder() / "test.txt",
                      files::read(run.folder() / "text.txt").substr(0, 700));
  run.set("data.test", json::Value::string((run.folder() / "test.txt").string()).dump());
  const Layout layout = {.ranks = 2, .micro_batch = 25};
  train(run, once.path(), layout);

  run.set("eval.test_every", "\"epoch\"");
  const Result result = train(run, tested.path(), layout);

  EXPECT_EQ(result.trained, 10);
  EXPECT_THAT(steps_with(once.path(), "test_loss"), ElementsAre(10));
  EXPECT_THAT(steps_with(tested.path(), "test_loss"), ElementsAre(5, 10));
  EXPECT_THAT(steps_with(tested.path(), "eval_loss"), ElementsAre(5, 10));
  EXPECT_EQ(digest_of(tested.path(), 10), digest_of(once.path(), 10));
  // The first line has the weights of the first epoch.
  double first = 0.0;
  on_engines(
      run,
      {},
      [&](Engine& engine) { first = engine.evaluator().evaluate_test().loss; },
      tested.path() / "checkpoints" / checkpoint::step_name(5));
  EXPECT_EQ(values_in(tested.path(), "test_loss").front(), first);
  EXPECT_EQ(values_in(tested.path(), "test_loss").back(), value_in(once.path(), "test_loss"));
}

TEST(TestSets, AreEvaluatedWithTheLastWeightsWhereNoneAreTheBest) {
  const files::TempDir folder;
  TinyRun run;
  run.set("eval.every", "0").set("data.validation_fraction", "0").set("trainer.max_steps", "3");
  files::write_atomic(run.folder() / "test.txt", files::read(run.folder() / "text.txt"));
  run.set("data.test", json::Value::string((run.folder() / "test.txt").string()).dump());

  const Result result = train(run, folder.path(), {});

  EXPECT_EQ(result.step, 3);
  EXPECT_THAT(steps_with(folder.path(), "test_loss"), ElementsAre(3));
  // 6000 characters are 374 windows of 16 and one to predict.
  EXPECT_EQ(value_in(folder.path(), "test_tokens"), 374.0 * 16);
}

}  // namespace
}  // namespace tessera::engine
