// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training: when they are written, which of them are kept, and that training
// continues meanwhile.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/on_engines.h"
#include "support/no_threads.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/comm/world.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::TinyRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Steps = std::vector<std::int64_t>;

std::map<std::string, std::string> contents(const fs::path& root) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file())
      out[fs::relative(entry.path(), root).string()] = files::read(entry.path());
  }
  return out;
}

Steps steps_of(const fs::path& root) {
  Steps out;
  for (const auto& folder : checkpoint::list(root))
    out.push_back(*checkpoint::step_of(folder));
  return out;
}

/// Does something before or after steps.
struct Script final : Hook {
  Script() : Hook(kMetric) {}
  [[nodiscard]] std::string_view name() const override { return "script"; }
  void before_train_iter(Trainer& trainer) override {
    if (trainer.engine().step() + 1 == stop_in)
      trainer.engine().world().control().stop_requested = SIGTERM;
  }
  void after_train_iter(Trainer& trainer, const StepReport& report) override {
    const auto loss = losses.find(report.step);
    if (loss != losses.end()) checkpoints->after_test(trainer, {.loss = loss->second});
  }
  std::int64_t stop_in = -1;              ///< a signal comes in this step
  std::map<std::int64_t, double> losses;  ///< losses of the evaluations after these steps
  CheckpointHook* checkpoints = nullptr;
};

struct Result {
  int code = -1;
  std::int64_t step = 0;
  std::vector<std::string> incomplete;
};

/// Trains with checkpoints under `folder`/checkpoints.
Result train(const TinyRun& run,
             const fs::path& folder,
             const Script& script = {},
             const fs::path& resume = {},
             int ranks = 2) {
  Result result;
  on_engines(
      run,
      {.ranks = ranks},
      [&](Engine& engine) {
        Trainer trainer(engine, nullptr, folder);
        auto checkpoints = std::make_unique<CheckpointHook>(engine.plan().run().checkpoint);
        auto scripted = std::make_unique<Script>(script);
        scripted->checkpoints = checkpoints.get();
        trainer.attach(std::move(scripted));
        trainer.attach(std::move(checkpoints));
        const int code = trainer.fit();
        if (engine.world().is_leader()) result = {code, engine.step(), trainer.incomplete()};
      },
      resume);
  return result;
}

class SaverModes : public ::testing::TestWithParam<bool> {
 protected:
  SaverModes() { run_.set("checkpoint.async", GetParam() ? "true" : "false"); }
  [[nodiscard]] Steps saved() const { return steps_of(folder_.path() / "checkpoints"); }
  TinyRun run_;
  files::TempDir folder_;
};
INSTANTIATE_TEST_SUITE_P(, SaverModes, ::testing::Bool(), [](const auto& info) {
  return info.param ? "Beside" : "Waiting";
});

TEST(BackgroundSaving, WritesWhatWasThereWhenItBegan) {
  struct Case {
    const char* name;
    Layout layout;
    std::vector<std::pair<std::string, std::string>> changes;
  };
  for (const Case& c : {Case{"one rank", {.ranks = 1, .stage = 0}, {}},
                        Case{"replicated", {.ranks = 2, .stage = 0}, {}},
                        Case{"sharded states", {.ranks = 2, .stage = 1}, {}},
                        Case{"sharded weights", {.ranks = 2, .stage = 3}, {}},
                        Case{"masters beside 16 bits", {.ranks = 2}, {{"bf16.enabled", "true"}}},
                        Case{"no masters",
                             {.ranks = 2},
                             {{"bf16.enabled", "true"},
                              {"bf16.bf16_master_weights_and_grads", "true"},
                              {"bf16.bf16_optimizer_states", "true"}}},
                        Case{"states of whole tensors",
                             {.ranks = 2},
                             {{"optimizer", R"({"type": "Adafactor"})"}}}}) {
    SCOPED_TRACE(c.name);
    TinyRun run;
    for (const auto& [path, value] : c.changes)
      run.set(path, value);
    const files::TempDir waiting, beside;

    on_engines(run, c.layout, [&](Engine& engine) {
      while (engine.step() < 3)
        engine.train_step();
      engine.save(waiting.path());
    });
    on_engines(run, c.layout, [&](Engine& engine) {
      while (engine.step() < 3)
        engine.train_step();
      engine.saver().save_in_background(beside.path());
      while (engine.step() < 6)
        engine.train_step();
      engine.saver().finish();
    });

    EXPECT_EQ(contents(beside.path()), contents(waiting.path()));
    EXPECT_EQ(contents(waiting.path()).size(), static_cast<std::size_t>(c.layout.ranks) + 2);
  }
}

TEST(BackgroundSaving, ChangesNoStep) {
  const TinyRun run;
  std::vector<double> alone, beside;
  const auto losses = [&](std::vector<double>& out, bool saves) {
    const files::TempDir dir;
    on_engines(run, {.ranks = 2}, [&](Engine& engine) {
      for (int i = 0; i < 12; ++i) {
        const StepReport report = engine.train_step();
        if (engine.world().is_leader()) out.push_back(report.loss);
        if (!saves) continue;
        if (engine.saver().saving() && engine.saver().settled()) engine.saver().finish();
        if (!engine.saver().saving()) engine.saver().save_in_background(dir.path());
      }
      if (engine.saver().saving()) engine.saver().finish();
    });
  };

  losses(alone, false);
  losses(beside, true);

  EXPECT_EQ(beside, alone);
}

TEST(BackgroundSaving, CopiesNothingBeforeAnUpdateAndKeepsNoCopyAfterIt) {
  const files::TempDir dir;
  on_engines(TinyRun(), {.ranks = 2}, [&](Engine& engine) {
    const auto held = [&] {
      return engine.memory().current[static_cast<std::size_t>(memory::Tag::Optimizer)];
    };
    engine.train_step();
    const std::int64_t before = held();

    engine.saver().save_in_background(dir.path());
    EXPECT_EQ(held(), before);
    // A shard is whole chunks, so that a small model's are of several sizes.
    const std::int64_t most = before + 2 * planner::saving_bytes(engine.plan());
    while (!engine.saver().settled()) {
      engine.train_step();
      EXPECT_LE(held(), most);
    }
    EXPECT_EQ(held(), before);
    engine.saver().finish();
  });
}

TEST(BackgroundSaving, IsWaitedForUntilTheDiskHasIt) {
  const files::TempDir dir;
  on_engines(TinyRun(), {.ranks = 2}, [&](Engine& engine) {
    engine.train_step();
    engine.world().transport().set_stall_limit(1.0);

    engine.saver().save_in_background(dir.path(),
                                      [] { std::this_thread::sleep_for(std::chrono::seconds(3)); });

    EXPECT_NO_THROW(engine.saver().finish());
  });
}

TEST(Saving, NeedsNoThread) {
  const files::TempDir dir;
  on_engines(TinyRun(), {.ranks = 1, .stage = 0}, [&](Engine& engine) {
    engine.train_step();
    const tessera::test::NoMoreThreads none;

    EXPECT_NO_THROW(engine.save(dir.path()));
  });

  ASSERT_THAT(steps_of(dir.path()), ElementsAre(1));
  checkpoint::Checkpoint(checkpoint::list(dir.path()).front()).verify();
}

TEST_P(SaverModes, SavesEveryFewStepsAndAtTheEndAndKeepsTheNewest) {
  run_.set("trainer.max_steps", "9").set("checkpoint.every", "2").set("checkpoint.keep", "3");

  const Result result = train(run_, folder_.path());

  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(saved(), ElementsAre(6, 8, 9));
  for (const auto& folder : checkpoint::list(folder_.path() / "checkpoints"))
    checkpoint::Checkpoint(folder).verify();
}

TEST_P(SaverModes, SavesByTheClock) {
  run_.set("trainer.max_steps", "4").set("checkpoint.every_minutes", "1e-9");
  run_.set("checkpoint.keep", "9");

  train(run_, folder_.path());

  EXPECT_THAT(saved(), ElementsAre(1, 2, 3, 4));
}

TEST_P(SaverModes, NeverSavesByAClockThatIsOff) {
  run_.set("trainer.max_steps", "4").set("checkpoint.every_minutes", "0");

  train(run_, folder_.path());

  EXPECT_THAT(saved(), ElementsAre(4));
}

TEST_P(SaverModes, KeepsTheBestAndTheNewest) {
  run_.set("checkpoint.best", "true").set("checkpoint.keep", "1").set("checkpoint.every", "3");
  run_.set("trainer.max_steps", "9");
  Script script;
  script.losses = {{2, 3.0}, {4, 2.0}, {6, 2.5}};

  train(run_, folder_.path(), script);
  EXPECT_THAT(saved(), ElementsAre(4, 9));

  // The next run knows how good that was.
  run_.set("trainer.max_steps", "14");
  script.losses = {{10, 2.2}, {13, 1.9}};
  train(run_, folder_.path(), script, *checkpoint::newest(folder_.path() / "checkpoints"));
  EXPECT_THAT(saved(), ElementsAre(13, 14));
}

TEST_P(SaverModes, TheBestOfAnotherRunDoesNotCount) {
  run_.set("checkpoint.best", "true").set("checkpoint.keep", "1");
  run_.set("trainer.max_steps", "3");
  Script script;
  script.losses = {{2, 1.0}};
  train(run_, folder_.path(), script);
  const files::TempDir elsewhere;

  run_.set("trainer.max_steps", "6");
  script.losses = {{5, 2.0}};
  train(run_, elsewhere.path(), script, *checkpoint::newest(folder_.path() / "checkpoints"));

  EXPECT_THAT(steps_of(elsewhere.path() / "checkpoints"), ElementsAre(5, 6));
}

TEST_P(SaverModes, SavesAtASignal) {
  run_.set("checkpoint.every", "2");
  Script script;
  script.stop_in = 5;

  const Result result = train(run_, folder_.path(), script);

  EXPECT_EQ(result.code, kExitStopped);
  EXPECT_THAT(saved(), ElementsAre(2, 4, 5));
}

TEST_P(SaverModes, SavesNothingAtASignalWhereThatIsOff) {
  run_.set("checkpoint.every", "2").set("checkpoint.save_on_signal", "false");
  Script script;
  script.stop_in = 5;

  const Result result = train(run_, folder_.path(), script);

  EXPECT_EQ(result.code, kExitTerminated);
  EXPECT_THAT(saved(), ElementsAre(2, 4));
}

TEST_P(SaverModes, LeavesTheCheckpointThatWasUnderWayWhenTrainingDiverges) {
  run_.set("checkpoint.every", "1").set("optimizer.params.lr", "1e30");
  run_.set("scheduler", "{}").set("gradient_clipping", "0");
  std::string said;

  try {
    train(run_, folder_.path());
  } catch (const Error& error) {
    said = error.what();
  }

  ASSERT_THAT(said, HasSubstr("diverged at step "));
  const std::int64_t diverged = std::stoll(said.substr(said.find("step ") + 5));
  ASSERT_GT(diverged, 1);
  EXPECT_EQ(saved().back(), diverged - 1);
}

/// A limit on the size of files in place of a full disk: both are an error of write().
class FullDisk {
 public:
  FullDisk() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit little{20'000, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &little);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

TEST_P(SaverModes, ContinuesWithoutACheckpointThatTheDiskRefuses) {
  run_.set("trainer.max_steps", "3");
  train(run_, folder_.path());
  const auto old = contents(folder_.path());
  run_.set("trainer.max_steps", "9").set("checkpoint.every", "2");
  Result result;

  {
    const FullDisk full;
    result = train(run_, folder_.path(), {}, *checkpoint::newest(folder_.path() / "checkpoints"));
  }

  EXPECT_EQ(result.code, kExitIncomplete);
  EXPECT_EQ(result.step, 9);
  ASSERT_EQ(result.incomplete.size(), 4U);  // 4, 6, 8 and the last one
  EXPECT_THAT(result.incomplete[0], HasSubstr(".safetensors"));
  EXPECT_EQ(contents(folder_.path()), old);
}

}  // namespace
}  // namespace tessera::engine
