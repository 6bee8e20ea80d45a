// SPDX-License-Identifier: Apache-2.0
// The loop and its hooks: which hook points exist, in which order they run, and what tessera's own
// hooks do at them.
#include "tessera/engine/trainer.h"

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
namespace {

using tessera::test::on_engines;
using tessera::test::TinyRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

/// Writes down every point that it is called at.
class Recorder final : public Hook {
 public:
  Recorder(Words& words, std::string who, int priority)
      : Hook(priority), words_(words), who_(std::move(who)) {}
  [[nodiscard]] std::string_view name() const override { return "recorder"; }
  void after_hook_is_attached(Trainer& /*trainer*/) override { note("attached"); }
  void before_train(Trainer& /*trainer*/) override { note("train"); }
  void after_train(Trainer& /*trainer*/) override { note("/train"); }
  void before_train_epoch(Trainer& /*trainer*/) override { note("epoch"); }
  void after_train_epoch(Trainer& /*trainer*/) override { note("/epoch"); }
  void before_train_iter(Trainer& /*trainer*/) override { note("iter"); }
  void after_train_iter(Trainer& /*trainer*/, const StepReport& report) override {
    note(fmt::format("/iter {}", report.step));
  }
  void before_test(Trainer& /*trainer*/) override { note("test"); }
  void before_test_epoch(Trainer& /*trainer*/) override { note("test epoch"); }
  void before_test_iter(Trainer& /*trainer*/) override { note("test iter"); }
  void after_test_iter(Trainer& /*trainer*/) override { note("/test iter"); }
  void after_test_epoch(Trainer& /*trainer*/) override { note("/test epoch"); }
  void after_test(Trainer& /*trainer*/, const EvalReport& report) override {
    note(fmt::format("/test of {} tokens", report.tokens));
  }

 private:
  void note(std::string what) {
    words_.push_back(who_.empty() ? std::move(what) : who_ + ": " + what);
  }
  Words& words_;
  std::string who_;
};

class Lines final : public Console {
 public:
  void line(std::string_view text) override { lines.emplace_back(text); }
  void live(std::string_view text) override { live_lines.emplace_back(text); }
  void stream(std::string_view /*text*/) override {}
  [[nodiscard]] bool is_terminal() const override { return terminal; }
  Words lines, live_lines;
  bool terminal = false;
};

/// What rank 0's recorder received during `work`, in a run of `steps` steps.
Words heard(TinyRun run, int ranks, const std::function<void(Trainer&)>& work) {
  Words words;
  on_engines(run, {.ranks = ranks, .micro_batch = 50}, [&](Engine& engine) {
    Trainer trainer(engine);
    Words other;
    Words& mine = engine.world().is_leader() ? words : other;
    trainer.attach(std::make_unique<Recorder>(mine, "", 5));
    work(trainer);
  });
  return words;
}

TEST(Hooks, HearEveryPointOfATraining) {
  // 299 windows of text: an epoch has five steps of 50 windows.
  const Words words =
      heard(TinyRun().set("trainer.max_steps", "6"), 1, [](Trainer& trainer) { trainer.fit(); });

  EXPECT_THAT(words,
              ElementsAre("attached",
                          "train",
                          "epoch",
                          "iter",
                          "/iter 1",
                          "iter",
                          "/iter 2",
                          "iter",
                          "/iter 3",
                          "iter",
                          "/iter 4",
                          "iter",
                          "/iter 5",
                          "/epoch",
                          "epoch",
                          "iter",
                          "/iter 6",
                          "/epoch",
                          "/train"));
}

TEST(Hooks, HearEveryPointOfAnEvaluation) {
  // Three batches of two windows of 16 tokens are two rounds of two ranks.
  EXPECT_THAT(heard(TinyRun(), 2, [](Trainer& trainer) { trainer.test(); }),
              ElementsAre("attached",
                          "test",
                          "test epoch",
                          "test iter",
                          "/test iter",
                          "test iter",
                          "/test iter",
                          "/test epoch",
                          "/test of 96 tokens"));
}

TEST(Hooks, AreCalledByPriorityAndThenInTheOrderOfTheirAttaching) {
  Words words;
  on_engines(TinyRun().set("trainer.max_steps", "1"), {}, [&](Engine& engine) {
    Trainer trainer(engine);
    trainer.attach(std::make_unique<Recorder>(words, "late", Hook::kReport));
    trainer.attach(std::make_unique<Recorder>(words, "early", Hook::kMetric));
    trainer.attach(std::make_unique<Recorder>(words, "second late", Hook::kReport));
    words.clear();
    trainer.fit();
  });

  ASSERT_EQ(words.size(), 18U);
  EXPECT_THAT(Words(words.begin(), words.begin() + 3),
              ElementsAre("early: train", "late: train", "second late: train"));
  EXPECT_THAT(Words(words.begin() + 9, words.begin() + 12),
              ElementsAre("early: /iter 1", "late: /iter 1", "second late: /iter 1"));
  EXPECT_THAT(Words(words.end() - 3, words.end()),
              ElementsAre("early: /train", "late: /train", "second late: /train"));
}

/// Attaches another hook in the midst of a training.
class Attaching final : public Hook {
 public:
  Attaching() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "attaching"; }
  void before_train(Trainer& trainer) override { trainer.attach(std::make_unique<Attaching>()); }
};

TEST(Hooks, AreNotAttachedWhileHooksRun) {
  on_engines(TinyRun().set("trainer.max_steps", "1"), {}, [&](Engine& engine) {
    Trainer trainer(engine);
    trainer.attach(std::make_unique<Attaching>());
    EXPECT_THROW(trainer.fit(), Error);
  });
}

TEST(Hooks, ComeWithTheirOwnPriorities) {
  EXPECT_EQ(LossHook().priority(), 0);
  EXPECT_EQ(MetricByStepHook().priority(), 10);
  EXPECT_EQ(MetricByEpochHook().priority(), 10);
  EXPECT_EQ(ThroughputHook().priority(), 10);
  EXPECT_EQ(CheckpointHook({}).priority(), 10);
}

/// A block in whose first forward of the second step a signal comes.
class Interrupted final : public nn::Block {
 public:
  Interrupted(std::unique_ptr<nn::Block> block, ControlPage*& control)
      : block_(std::move(block)), control_(control) {}
  void declare(nn::Params& params) override { block_->declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (control_ != nullptr && control_->line(0).step == 2) control_->stop_requested = SIGTERM;
    return block_->forward(std::move(in), batch, context);
  }

 private:
  std::unique_ptr<nn::Block> block_;
  ControlPage*& control_;
};

TEST(Trainers, StopAfterTheStepInWhichASignalCame) {
  prepare_process(1);
  TinyRun run;
  const planner::Plan uninterrupted = run.set("trainer.max_steps", "6").plan({.ranks = 1});
  ControlPage* control = nullptr;
  planner::ModelPlan model = uninterrupted.model();
  nn::BlockSpec& first = model.resolved.model.blocks.front();
  first.make = [make = first.make, &control] {
    return std::make_unique<Interrupted>(make(), control);
  };
  const planner::Plan made = planner::with(uninterrupted, std::move(model));
  const auto data = open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  comm::run_threads(1, [&](comm::World& world) {
    control = &world.control();
    Engine engine(plan, world, data);
    engine.initialize_weights();
    Trainer trainer(engine);
    EXPECT_EQ(trainer.fit(), kExitTerminated);
    EXPECT_EQ(engine.step(), 2);
  });
}

/// The warnings of a Trainer with the hook `hook`, if any.
Words warnings_of(TinyRun run, std::unique_ptr<Hook> hook = nullptr) {
  Words out;
  log::set_sink([&](log::Level level, std::string_view text) {
    if (level == log::Level::Warning) out.emplace_back(text);
  });
  on_engines(run.set("trainer.max_steps", "1"), {}, [&](Engine& engine) {
    Trainer trainer(engine);
    if (hook) trainer.attach(std::move(hook));
    trainer.fit();
    trainer.fit();
  });
  log::set_sink({});
  return out;
}

/// A hook that reports that it does one kind of work.
class Doing final : public Hook {
 public:
  explicit Doing(Duty duty) : Hook(kReport), duty_(duty) {}
  [[nodiscard]] std::string_view name() const override { return "doing"; }
  [[nodiscard]] bool does(Duty duty) const override { return duty == duty_; }

 private:
  Duty duty_;
};

TEST(Trainers, WarnOnceOfAnEvaluationThatNoHookMakes) {
  TinyRun run;
  run.set("eval.every", "7");

  EXPECT_THAT(warnings_of(run),
              ElementsAre(::testing::AllOf(HasSubstr("eval.every is 7"),
                                           HasSubstr("engine::attach_defaults"))));
  EXPECT_THAT(warnings_of(run, std::make_unique<Doing>(Duty::Evaluate)), IsEmpty());
  EXPECT_THAT(warnings_of(run, std::make_unique<EvaluationHook>(7)), IsEmpty());
  EXPECT_THAT(warnings_of(run.set("eval.every", "0")), IsEmpty());
}

TEST(Trainers, WarnOfCheckpointsThatNoHookSaves) {
  TinyRun run;
  run.set("eval.every", "0");
  EXPECT_THAT(warnings_of(run), IsEmpty());

  for (const auto& [key, value] :
       {std::pair("every", "5"), std::pair("every_minutes", "3"), std::pair("keep", "9")}) {
    TinyRun asking = run;
    asking.set(std::string("checkpoint.") + key, value);
    EXPECT_THAT(warnings_of(asking), ElementsAre(HasSubstr("no hook saves"))) << key;
    EXPECT_THAT(warnings_of(asking, std::make_unique<Doing>(Duty::Save)), IsEmpty()) << key;
  }
}

TEST(Trainers, RefuseAFolderThatDoesNotExist) {
  const TinyRun run;
  on_engines(run, {}, [&](Engine& engine) {
    try {
      const Trainer trainer(engine, nullptr, run.folder() / "absent");
      ADD_FAILURE() << "the folder was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Io);
      EXPECT_THAT(error.what(), HasSubstr("absent does not exist"));
      EXPECT_THAT(error.fix(), HasSubstr("create_directories"));
    }
  });
}

TEST(LossHook, IsTheMeanSinceItsReset) {
  on_engines(TinyRun(), {}, [](Engine& engine) {
    Trainer trainer(engine);
    LossHook hook;
    EXPECT_EQ(hook.mean(), 0.0);
    hook.after_train_iter(trainer, {.loss = 7.0});
    hook.reset();
    hook.after_train_iter(trainer, {.loss = 3.0});
    hook.after_train_iter(trainer, {.loss = 4.0});
    EXPECT_EQ(hook.mean(), 3.5);
  });
}

TEST(ThroughputHook, LeavesOutTheFirstSteps) {
  on_engines(TinyRun(), {}, [](Engine& engine) {
    Lines console;
    Trainer trainer(engine, &console);
    ThroughputHook hook(/*ignored_steps=*/2);
    for (const double seconds : {100.0, 100.0, 1.0, 3.0})
      hook.after_train_iter(trainer, {.batch_tokens = 40, .seconds = seconds});
    EXPECT_EQ(hook.tokens_per_s(), 20.0);
    hook.after_train(trainer);
    EXPECT_THAT(console.lines,
                ElementsAre("throughput 20 tokens/s over 2 steps (the first 2 not counted)"));
  });
}

TEST(MetricByEpochHook, ReportsTheMeanOfWholeEpochs) {
  Lines console;
  double sum = 0.0;
  on_engines(TinyRun().set("trainer.max_steps", "7"), {.micro_batch = 50}, [&](Engine& engine) {
    struct Sum final : Hook {
      explicit Sum(double& sum) : Hook(kMetric), sum_(sum) {}
      [[nodiscard]] std::string_view name() const override { return "sum"; }
      void after_train_iter(Trainer& /*trainer*/, const StepReport& report) override {
        if (report.step <= 5) sum_ += report.loss;
      }
      double& sum_;
    };
    Trainer trainer(engine, &console);
    trainer.attach(std::make_unique<Sum>(sum));
    trainer.attach(std::make_unique<MetricByEpochHook>());
    trainer.fit();
  });

  EXPECT_THAT(console.lines,
              ElementsAre(fmt::format("epoch 1 | 5 steps | mean loss {:.4f}", sum / 5)));
}

TEST(MetricByStepHook, SaysWhenCommunicationTakesMostOfTheTime) {
  on_engines(TinyRun().set("steps_per_print", "1000"), {.ranks = 2}, [](Engine& engine) {
    for (const bool much : {true, false}) {
      Lines console;
      Trainer trainer(engine, &console);
      MetricByStepHook hook;
      for (int step = 1; step <= 30; ++step)
        hook.after_train_iter(trainer, {.step = step, .seconds = 1.0, .comm_s = much ? 0.6 : 0.4});
      const Words& lines = console.lines;
      if (!engine.world().is_leader()) {
        EXPECT_THAT(lines, IsEmpty());
      } else if (much) {
        EXPECT_THAT(lines,
                    ::testing::Contains(HasSubstr("communication takes 60% of the time; fewer "
                                                  "ranks (-n 1) would likely be faster"))
                        .Times(1));
      } else {
        EXPECT_THAT(lines, ::testing::Not(::testing::Contains(HasSubstr("communication"))));
      }
    }
  });
}

TEST(ProgressHook, KeepsABarOnATerminalAlone) {
  for (const bool terminal : {true, false}) {
    Lines console;
    console.terminal = terminal;
    on_engines(TinyRun().set("trainer.max_steps", "2"), {}, [&](Engine& engine) {
      Trainer trainer(engine, &console);
      trainer.attach(std::make_unique<ProgressHook>());
      trainer.fit();
    });
    ASSERT_EQ(console.live_lines.size(), terminal ? 3U : 1U);
    EXPECT_EQ(console.live_lines.back(), "");  // gone at the end
    if (terminal) {
      EXPECT_THAT(console.live_lines[0], HasSubstr("1/2  loss "));
      EXPECT_THAT(console.live_lines[0], HasSubstr("tok/s  ETA "));
    }
  }
}

/// Index i of an update, from 0: norms are clipped where i > warm-up.
/// Trains two steps with an evaluation after every `every` of them in a folder where no plot can be
/// written. Returns for each warning of that whether the last checkpoint existed.
std::vector<bool> saved_before_drawing(const char* every) {
  TinyRun run;
  run.set("trainer.max_steps", "2").set("eval.every", every);
  const std::filesystem::path folder = run.folder() / "run";
  std::filesystem::create_directories(folder / "loss.svg/taken");
  std::vector<bool> out;
  log::set_sink([&](log::Level /*level*/, std::string_view text) {
    if (text.find("the plots of the run were not written") != std::string_view::npos)
      out.push_back(std::filesystem::exists(folder / "checkpoints" / checkpoint::step_name(2)));
  });
  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), kExitIncomplete);
  });
  log::set_sink({});
  return out;
}

TEST(ShowHook, DrawsAfterTheLastCheckpoint) {
  EXPECT_THAT(saved_before_drawing("0"), ElementsAre(true));
  EXPECT_THAT(saved_before_drawing("1"), ElementsAre(false, true)) << "one after each step";
  EXPECT_THAT(saved_before_drawing("3"), ElementsAre(true)) << "one at the end";
}

TEST(Clipping, BeginsAfterTheWarmUpWhereThatIsAsked) {
  TinyRun run;
  run.set("optimizer", R"({"type": "SGD", "params": {"lr": 0.05}})")
      .set("scheduler.params.warmup_num_steps", "3")
      .set("trainer.clip_after_warmup", "true");
  const auto free = TinyRun(run).set("gradient_clipping", "0").train({}, 7);
  const auto clipped = TinyRun(run).set("gradient_clipping", "1e-3").train({}, 7);

  // The loss of the step after update 3 is the last that knows no clipping.
  for (std::size_t step = 0; step <= 4; ++step)
    EXPECT_EQ(clipped.losses[step], free.losses[step]) << step;
  EXPECT_NE(clipped.losses[5], free.losses[5]);
}

/// Steps that a loss scale took are none of the warm-up's.
TEST(Clipping, CountsUpdatesNotSteps) {
  TinyRun run;
  run.set("optimizer", R"({"type": "SGD", "params": {"lr": 0.05}})")
      .set("scheduler.params.warmup_num_steps", "3")
      .set("trainer.clip_after_warmup", "true")
      .set("fp16", R"({"enabled": true, "initial_scale_power": 32, "hysteresis": 1})");
  const auto free = TinyRun(run).set("gradient_clipping", "0").train({}, 30);
  const auto clipped = TinyRun(run).set("gradient_clipping", "1e-3").train({}, 30);

  const auto skipped = static_cast<std::size_t>(free.skipped.back());
  ASSERT_GT(skipped, 3U);
  ASSERT_LT(skipped + 6, free.losses.size());
  for (std::size_t step = 0; step <= skipped + 4; ++step)
    EXPECT_EQ(clipped.losses[step], free.losses[step]) << step;
  EXPECT_NE(clipped.losses[skipped + 5], free.losses[skipped + 5]);
}

TEST(Evaluations, NeedDataToEvaluateOn) {
  on_engines(TinyRun().set("data.validation_fraction", "0").set("eval.every", "0"),
             {},
             [](Engine& engine) { EXPECT_THROW(engine.evaluate(), Error); });
}

/// The time that evaluations and saves wait is not counted for the next step.
TEST(StepReports, HaveNoMoreCommunicationThanTime) {
  on_engines(TinyRun(), {.ranks = 2}, [](Engine& engine) {
    for (int step = 0; step < 4; ++step) {
      const StepReport report = engine.train_step();
      EXPECT_LE(report.comm_s, report.seconds) << step;
      engine.pause_clock();
      for (int i = 0; i < 20; ++i)
        engine.evaluate();
      engine.resume_clock();
    }
  });
}

TEST(GradientSums, InSixteenBitsAreKeptOnOneRankAsOnTwo) {
  TinyRun run;
  run.set("bf16.enabled", "true")
      .set("data_types.grad_accum_dtype", "\"bf16\"")
      .set("gradient_reduction", "\"once\"");

  const auto trace = run.train({.ranks = 1, .accumulation = 2}, 3);

  EXPECT_EQ(trace.losses.size(), 3U);
  EXPECT_LT(trace.losses.back(), trace.losses.front());
}

}  // namespace
}  // namespace tessera::engine
