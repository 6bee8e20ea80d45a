// SPDX-License-Identifier: Apache-2.0
// Which evaluation is the best, in which cases there is one, and what is refused.
#include "tessera/tasks/eval_options.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/cadence.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(const std::string& members) {
  const std::string model =
      members.find("\"model\"") == std::string::npos ? R"("model": {"preset": "nano"}, )" : "";
  const std::string text = "{" + model + R"("train_batch_size": 4,
          "data": {"train": "a.txt", "sequence_length": 64, "validation_fraction": 0.1}, )" +
                           members + "}";
  return make_plan(json::parse(text, "c.json"), 1, "c.json");
}

std::string refusal(const std::string& members) {
  try {
    plan_of(members);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

tasks::BestRule rule_of(const std::string& best) {
  return plan_of(R"("eval": {"every": 5, "best": )" + best + "}").run().eval.rule();
}

TEST(Samples, AreDrawnUnlessTheConfigurationSaysHow) {
  const tasks::EvalOptions unsaid = plan_of(R"("eval": {"every": 5, "prompt": "a"})").run().eval;
  EXPECT_EQ(unsaid.top_k, 40);
  EXPECT_EQ(unsaid.temperature, 0.8);

  const tasks::EvalOptions greedy =
      plan_of(R"("eval": {"every": 5, "prompt": "a", "top_k": 1, "temperature": 1})").run().eval;
  EXPECT_EQ(greedy.top_k, 1);
  EXPECT_EQ(greedy.temperature, 1.0);
}

TEST(Answers, AreScoredWhereSamplesHaveOne) {
  const auto refused = [](const std::string& task, const std::string& eval) {
    return refusal(R"("task": ")" + task + R"(", "eval": )" + eval);
  };
  EXPECT_THAT(refused("pretrain", R"({"every": 5, "generate": 10})"),
              AllOf(HasSubstr("eval.generate"), HasSubstr("no answer")));
  EXPECT_THAT(refused("sft", R"({"every": 5, "generate": 10})"), HasSubstr("data.pack"));
  EXPECT_THAT(refused("sft", R"({"every": 5, "best": "rouge1"})"),
              AllOf(HasSubstr("eval.best"), HasSubstr("set eval.generate")));
}

TEST(Cadences, AreStepsOrEpochs) {
  const config::Cadence steps = plan_of(R"("eval": {"every": 3})").run().eval.when();
  EXPECT_FALSE(steps.due(4, true));
  EXPECT_TRUE(steps.due(6, false));

  const config::Cadence epochs =
      plan_of(R"("checkpoint": {"every": "epoch"})").run().checkpoint.when();
  EXPECT_FALSE(epochs.due(6, false));
  EXPECT_TRUE(epochs.due(7, true));

  EXPECT_FALSE(plan_of(R"("eval": {"every": 0})").run().eval.when().any());
}

TEST(Cadences, OfOtherKindsAreRefused) {
  EXPECT_THAT(refusal(R"("eval": {"every": "day"})"),
              AllOf(HasSubstr("eval.every"), HasSubstr("\"day\"")));
  EXPECT_THAT(refusal(R"("eval": {"test_every": "epoch"})"),
              AllOf(HasSubstr("eval.test_every"), HasSubstr("data.test is not given")));
  EXPECT_THAT(refusal(R"("eval": {"test_every": "day"})"), HasSubstr("eval.test_every"));
  EXPECT_THAT(refusal(R"("eval": {"every": 1.5})"),
              HasSubstr("expected an integer, a share below 1 or \"epoch\""));
  EXPECT_THAT(refusal(R"("checkpoint": {"every": -1})"),
              AllOf(HasSubstr("checkpoint.every"), HasSubstr("at least 0 steps")));
}

TEST(Cadences, MayBeSharesOfTheRun) {
  const config::Cadence quarter = config::cadence_of(json::parse("0.25", "c.json"));
  EXPECT_TRUE(quarter.any());
  EXPECT_EQ(quarter.text(), "every 0.25 of the run");
  EXPECT_EQ(quarter.in_run_of(16).steps, 4);
  // Rounded up, so that a share of a short run is at least one step.
  EXPECT_EQ(quarter.in_run_of(5).steps, 2);
  EXPECT_EQ(quarter.in_run_of(1).steps, 1);
  EXPECT_EQ(config::Cadence{.steps = 3}.in_run_of(16).steps, 3);
}

TEST(Cadences, OfCheckpointsReplaceTheClock) {
  EXPECT_EQ(plan_of(R"("checkpoint": {})").run().checkpoint.interval_s(), 900.0);
  EXPECT_FALSE(plan_of(R"("checkpoint": {"every": "epoch"})").run().checkpoint.interval_s());
}

TEST(BestRules, TakeLowLossesAndHighScores) {
  EXPECT_FALSE(plan_of(R"("eval": {"every": 5})").run().eval.rule().higher);
  EXPECT_EQ(plan_of(R"("eval": {"every": 5})").run().eval.rule().metric, "loss");
  EXPECT_FALSE(rule_of("\"mlm_loss\"").higher);
  EXPECT_FALSE(rule_of("\"perplexity\"").higher);
  EXPECT_TRUE(rule_of("\"accuracy\"").higher);
  EXPECT_EQ(rule_of("\"accuracy\"").metric, "accuracy");
  EXPECT_TRUE(rule_of(R"({"metric": "loss", "mode": "max"})").higher);
  EXPECT_FALSE(rule_of(R"({"metric": "f1", "mode": "min"})").higher);
  EXPECT_TRUE(rule_of(R"({"metric": "f1"})").higher);
}

TEST(BestRules, OfOtherFormsAreRefused) {
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "best": 3})"),
              AllOf(HasSubstr("eval.best"), HasSubstr("a number")));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "best": {"metric": "f1", "mode": "up"}})"),
              AllOf(HasSubstr("eval.best.mode"), HasSubstr("\"up\"")));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "best": {"name": "f1"}})"),
              HasSubstr("eval.best.name"));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "best": ""})"), HasSubstr("names no metric"));
}

TEST(EarlyStops, NeedEvaluations) {
  EXPECT_THAT(refusal(R"("eval": {"patience": 3})"),
              AllOf(HasSubstr("eval.patience"), HasSubstr("eval.every is 0")));
  EXPECT_THAT(refusal(R"("eval": {"patience_steps": 3})"), HasSubstr("eval.patience_steps"));
  EXPECT_THAT(refusal(R"("eval": {"best": "loss"})"), HasSubstr("eval.best"));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "min_gain": 0.1})"), HasSubstr("eval.min_gain"));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "patience": 0})"), HasSubstr("at least 1"));
}

TEST(BestCheckpoints, AreKeptByThoseWhoSayWhichTheyAre) {
  const auto keeps = [](const std::string& members) {
    return plan_of(members).run().checkpoint.keeps_best();
  };
  EXPECT_FALSE(keeps(R"("eval": {"every": 5})"));
  EXPECT_TRUE(keeps(R"("eval": {"every": 5, "best": "accuracy"})"));
  EXPECT_TRUE(keeps(R"("eval": {"every": 5, "patience": 2})"));
  EXPECT_FALSE(keeps(R"("eval": {"every": 5, "patience": 2}, "checkpoint": {"best": false})"));
  EXPECT_THAT(refusal(R"("eval": {"every": 5, "best": "f1"}, "checkpoint": {"best": false})"),
              AllOf(HasSubstr("eval.best"), HasSubstr("has no effect")));
}

// The first evaluation would end the training.
TEST(EvalPrompt, OfAModelThatGeneratesNoTextIsRefused) {
  const std::string prompt = R"("eval": {"every": 5, "prompt": "The "}, )";
  for (const std::string& task : {std::string(R"("task": "masked_lm", "masked_lm":
           {"mask_token_id": 3}, "model": {"family": "bert", "num_layers": 1, "hidden_size": 16,
           "num_heads": 2, "max_positions": 64})"),
                                  std::string(R"("task": "reward")"),
                                  std::string(R"("task": "classify", "classify":
           {"labels": ["a", "b"]})"),
                                  std::string(R"("task": "tag", "tag": {"labels": ["a", "b"]})")}) {
    EXPECT_THAT(refusal(prompt + task),
                AllOf(HasSubstr("eval.prompt"), HasSubstr("does not generate text")))
        << task;
    EXPECT_EQ(refusal(R"("eval": {"every": 5}, )" + task), "") << task;
    EXPECT_EQ(refusal(R"("eval": {"prompt": "The "}, )" + task), "") << task;
  }
  EXPECT_EQ(refusal(prompt + R"("task": "prefer")"), "");
  EXPECT_EQ(refusal(prompt + R"("task": "pretrain")"), "");
}

// `tessera bench step` trains without evaluations, whatever the configuration evaluates.
TEST(Evaluations, AreDroppedWithAllTheirKeys) {
  json::Value source = json::parse(R"({
      "model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64},
      "train_batch_size": 4, "checkpoint": {"best": true, "keep": 2},
      "eval": {"every": 5, "best": "loss", "patience": 2, "patience_steps": 9, "min_gain": 0.1,
               "test_every": 3, "weights": "ema", "prompt": "The ", "top_k": 5}})",
                                   "c.json");
  EXPECT_THROW(make_plan(source, 1, "c.json"), Error);  // there is no validation data

  config::drop_evaluation(source);

  EXPECT_EQ(source.find("eval"), nullptr);
  EXPECT_EQ(source.find("checkpoint")->dump(), R"({"keep":2})");
  EXPECT_NO_THROW(make_plan(source, 1, "c.json"));
}

}  // namespace
}  // namespace tessera::planner
