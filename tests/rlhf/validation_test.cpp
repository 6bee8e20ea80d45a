// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Evaluations of a policy on held-out prompts, and the state that its checkpoints have.
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/engine/generate.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/tasks/rl/prompts.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kEvaluatedSteps = 4;

std::string letters_from(int count, char first) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += R"({"prompt": ")" +
           std::string(static_cast<std::size_t>(1 + i % 3), static_cast<char>(first + i)) + "\"}\n";
  return out;
}

/// A policy with six held-out prompts; `more`: parameters of the task.
TinyRun with_held_out(const std::string& more) {
  TinyRun run = reinforcing(letters_from(12, 'a'),
                            R"({"samples": 2, "max_new_tokens": 4,
          "rewards": [{"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}])" +
                                more + "}");
  const std::filesystem::path file = run.folder() / "held_out.jsonl";
  std::ofstream(file) << letters_from(6, 'p');
  return run.set("data.validation", "[\"" + file.string() + "\"]")
      .set("eval.every", "1")
      .set("eval.micro_batch", "4");
}

struct Evaluations {
  std::vector<engine::EvalReport> reports;  ///< before the first step, and after each one
  std::vector<double> losses;               ///< of the steps
};
Evaluations evaluated(const TinyRun& run,
                      const Layout& layout,
                      std::int64_t steps = kEvaluatedSteps) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  Evaluations out;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine.begin_experience();
    Evaluations mine;
    mine.reports.push_back(engine.evaluate());
    while (engine.step() < steps) {
      mine.losses.push_back(engine.train_step().loss);
      mine.reports.push_back(engine.evaluate());
    }
    engine.finish();
    if (world.is_leader()) out = std::move(mine);
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return out;
}

double mean_of(const engine::EvalReport& report, const char* name) {
  const engine::Metric* const found = engine::find_metric(report.metrics, name);
  return found == nullptr ? -1.0 : found->mean;
}

void expect_same_reports(const Evaluations& a, const Evaluations& b) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (std::size_t i = 0; i < a.reports.size(); ++i)
    EXPECT_EQ(bits_of(a.reports[i].metrics), bits_of(b.reports[i].metrics)) << i;
}

TEST(RlValidation, IsTheSameOnAnyRanksAndChangesNothing) {
  for (const std::string validation :
       {"", R"(, "validation": {"samples": 3, "temperature": 0.7})"}) {
    SCOPED_TRACE(validation);
    const TinyRun run = with_held_out(validation);
    const Evaluations one = evaluated(run, {.ranks = 1, .accumulation = 4, .stage = 0});

    expect_same_reports(one, evaluated(run, {.ranks = 2, .accumulation = 2, .stage = 3}));
    expect_same_reports(one, evaluated(run, {.ranks = 4, .accumulation = 1, .stage = 1}));
    EXPECT_EQ(one.losses,
              train(run, {.ranks = 1, .accumulation = 4}, {.steps = kEvaluatedSteps}).losses);
    for (const engine::EvalReport& report : one.reports)
      EXPECT_EQ(report.loss, -mean_of(report, "reward"));
    EXPECT_EQ(engine::find_metric(one.reports[0].metrics, "reward")->denominator,
              validation.empty() ? 6.0 : 18.0);
  }
}

// The reward is for the answers that the model gives to these prompts without chance.
TEST(RlValidation, RewardsTheMostLikelyAnswers) {
  const TinyRun run = with_held_out("");
  const Layout layout{.accumulation = 4};
  const double rewarded = mean_of(evaluated(run, layout, 0).reports.at(0), "reward");

  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  double expected = 0.0;
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine::Generator generator(engine.executor(), *plan.data().tokenizer, plan.model().resolved);
    const auto& prompts = dynamic_cast<const tasks::Prompts&>(*data->validation);
    for (std::int64_t i = 0; i < prompts.count(); ++i) {
      engine::GenerateOptions how;
      how.max_new_tokens = 4;
      how.sampler = {.temperature = 0.0};
      std::vector<std::int32_t> ids;
      generator.run_ids(prompts.prompt(i).ids, how, [&](std::int32_t id) { ids.push_back(id); });
      const bool ended = std::ssize(ids) < how.max_new_tokens;
      expected += std::ranges::any_of(ids, [](std::int32_t id) { return id >= '@' && id <= '~'; });
      expected += std::ssize(ids) + (ended ? 1 : 0) <= 3 ? 0.5 : 0.0;
    }
    expected /= static_cast<double>(prompts.count());
    engine.finish();
  });

  EXPECT_EQ(rewarded, expected);
}

// An average that never moves answers as the model did before the training.
TEST(RlValidation, EvaluatesTheAverageOfTheWeights) {
  const auto averaged = [](const char* decay, const char* weights) {
    TinyRun run = with_held_out(R"(, "validation": {"samples": 4, "temperature": 1})");
    run.set("trainer.ema.decay", decay)
        .set("eval.weights", weights)
        .set("optimizer.params.lr", "0.05");
    return run;
  };
  const Layout one{.accumulation = 4};
  const Evaluations still = evaluated(averaged("0.999999999999", "\"ema\""), one),
                    moved = evaluated(averaged("0.999999999999", "\"trained\""), one);

  EXPECT_EQ(bits_of(still.reports.front().metrics), bits_of(still.reports.back().metrics));
  EXPECT_NE(bits_of(moved.reports.front().metrics), bits_of(moved.reports.back().metrics));
  EXPECT_EQ(still.losses, moved.losses);
  const TinyRun half = averaged("0.5", "\"ema\"");
  expect_same_reports(evaluated(half, one),
                      evaluated(half, {.ranks = 2, .accumulation = 2, .stage = 3}));
}

/// Every completion earns the same, which is an alarm in every rollout.
TinyRun without_variance(const std::string& more) {
  return reinforcing(letters_from(12, 'a'),
                     R"({"algorithm": "rloo", "samples": 2, "max_new_tokens": 2,
                         "rewards": [{"type": "length", "max": 100}], )" +
                         more + "}");
}

TEST(RlAlarms, RaiseTheCoefficientOfTheDivergence) {
  const TinyRun run = without_variance(R"("kl": {"coefficient": 0.05}, "on_alarm": "raise_kl")");
  const std::vector<double> coefficients =
      metrics_of(run, {.accumulation = 4}, 21)["kl_coefficient"];

  EXPECT_EQ(coefficients.at(8), 0.05);
  EXPECT_EQ(coefficients.at(9), 0.1);  // the tenth rollout
  EXPECT_EQ(coefficients.at(18), 0.1);
  EXPECT_EQ(coefficients.at(19), 0.2);
}

TEST(RlAlarms, StopARunWithSamples) {
  const TinyRun run = without_variance(R"("on_alarm": "stop")");
  try {
    (void)metrics_of(run, {.accumulation = 4}, 12);
    FAIL() << "a run without anything to learn went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), testing::HasSubstr("(alarm equal_groups)"));
    EXPECT_THAT(error.what(), testing::HasSubstr("completions: "));
  }
}

// The coefficient and the count of alarms are in the checkpoint: no ledger is needed.
TEST(RlAlarms, AResumedRunHasTheSameCoefficientWithoutALedger) {
  for (const char* const more : {R"("kl": {"coefficient": 0.05}, "on_alarm": "raise_kl")",
                                 R"("kl": {"coefficient": 0.1, "target": 0.01, "horizon": 30})"}) {
    SCOPED_TRACE(more);
    constexpr std::int64_t kLonger = 14, kSaved = 7;
    const TinyRun run = without_variance(more);
    const files::TempDir folder;
    const Layout one{.accumulation = 4};
    const Trace whole =
        train(run, one, {.steps = kLonger, .root = folder.path(), .save_at = {kSaved}});

    const Trace after =
        train(run, one, {.steps = kLonger, .resume = *checkpoint::newest(folder.path())});

    ASSERT_EQ(after.metrics.size(), static_cast<std::size_t>(kLonger - kSaved));
    for (std::size_t i = 0; i < after.metrics.size(); ++i)
      EXPECT_EQ(after.metrics[i], whole.metrics[static_cast<std::size_t>(kSaved) + i]) << i;
    EXPECT_EQ(after.digest, whole.digest);
  }
}

}  // namespace
}  // namespace tessera::test
