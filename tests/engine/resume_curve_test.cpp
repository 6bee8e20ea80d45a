// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/resume_curve.h"

#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::engine {
namespace {

using tessera::test::TinyRun;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

planner::PlanWithData plan_with(const std::string& max_steps, const std::string& lr = "1e-3") {
  TinyRun run;
  run.set("trainer.max_steps", max_steps)
      .set("optimizer.params.lr", lr)
      .set("scheduler", R"({"type": "linear", "params": {"num_warmup_steps": 0}})");
  return {run.plan({}), {.max_steps = std::stoll(max_steps)}};
}

checkpoint::Meta saved_by(const planner::Plan& plan, std::int64_t step) {
  checkpoint::Meta meta;
  meta.config = plan.resolved();
  meta.step = step;
  return meta;
}

TEST(ResumeCurve, SaysNothingOfTheSameCurve) {
  const planner::PlanWithData plan = plan_with("40");

  const CurveChange change = curve_change(saved_by(plan, 20), plan);

  EXPECT_THAT(change.lines, IsEmpty());
  EXPECT_EQ(change.warning, "");
}

// The rate falls linearly from 1e-3 to 0: after 30 of 40 steps a quarter is left, after 30 of 120
// three quarters.
TEST(ResumeCurve, WarnsOfARateThatRisesAgain) {
  const CurveChange change = curve_change(saved_by(plan_with("40"), 30), plan_with("120"));

  EXPECT_THAT(
      change.lines,
      ElementsAre("trainer.max_steps: 40 -> 120",
                  AllOf(HasSubstr("0.000275 in step 30"), HasSubstr("0.00075 in step 31"))));
  EXPECT_THAT(change.warning,
              AllOf(HasSubstr("rises"),
                    HasSubstr("scheduler.on_resume \"keep\" to follow the old curve (40 steps)"),
                    HasSubstr("\"restart\"")));
  EXPECT_FALSE(change.curve.has_value());
}

planner::PlanWithData plan_that(const std::string& on_resume, const std::string& max_steps) {
  TinyRun run;
  run.set("trainer.max_steps", max_steps)
      .set("optimizer.params.lr", "1e-3")
      .set("scheduler",
           R"({"type": "linear", "params": {"num_warmup_steps": 0}, "on_resume": ")" + on_resume +
               "\"}");
  return {run.plan({}), {.max_steps = std::stoll(max_steps)}};
}

double rate_of(const planner::PlanWithData& plan, const CurveChange& change, std::int64_t update) {
  const planner::Course course{.max_steps = plan.course().max_steps, .curve = change.curve};
  return planner::make_schedule(plan.recipe(), course, *planner::make_rule(plan.recipe()))
      ->lr(update);
}

// The rate of update k of n falls linearly: 1e-3 x (n - (k - 1)) / n.
TEST(ResumeCurve, KeepsTheOldCurveWhenAsked) {
  const planner::PlanWithData plan = plan_that("keep", "120");
  const CurveChange change = curve_change(saved_by(plan_with("40"), 30), plan);

  EXPECT_EQ(change.warning, "");
  EXPECT_THAT(change.lines, ElementsAre(HasSubstr("has 40 steps")));
  EXPECT_NEAR(rate_of(plan, change, 31), 1e-3 * 10 / 40, 1e-12);
  EXPECT_NEAR(rate_of(plan, change, 40), 1e-3 * 1 / 40, 1e-12);
}

TEST(ResumeCurve, StartsAgainWhenAsked) {
  const planner::PlanWithData plan = plan_that("restart", "120");
  const CurveChange change = curve_change(saved_by(plan_with("40"), 30), plan);

  EXPECT_EQ(change.warning, "");
  EXPECT_THAT(change.lines, Contains(AllOf(HasSubstr("update 30"), HasSubstr("90 steps"))));
  EXPECT_NEAR(rate_of(plan, change, 31), 1e-3, 1e-12);
  EXPECT_NEAR(rate_of(plan, change, 120), 1e-3 * 1 / 90, 1e-12);
}

// Its checkpoints say where it began, so that an interruption does not begin it once more.
TEST(ResumeCurve, StartsAgainOnlyOnce) {
  const planner::PlanWithData plan = plan_that("restart", "120");
  const planner::PlanWithData running = planner::with(
      plan,
      planner::Course{.max_steps = plan.course().max_steps,
                      .curve = curve_change(saved_by(plan_with("40"), 30), plan).curve});
  checkpoint::Meta meta = saved_by(running, 60);
  meta.extra["schedule"] = curve_of_run(running);

  const CurveChange change = curve_change(meta, plan);

  EXPECT_THAT(change.lines, IsEmpty());
  EXPECT_NEAR(rate_of(plan, change, 61), 1e-3 * 60 / 90, 1e-12);
}

TEST(ResumeCurve, CountsUpdatesAndNotSkippedSteps) {
  const planner::PlanWithData plan = plan_that("restart", "120");
  checkpoint::Meta meta = saved_by(plan_with("40"), 30);
  meta.extra["skipped"] = json::Value::integer(4);

  const CurveChange change = curve_change(meta, plan);

  ASSERT_TRUE(change.curve.has_value());
  EXPECT_EQ(change.curve->start, 26);
  EXPECT_EQ(change.curve->length, 90);
}

TEST(ResumeCurve, ListsALowerRateWithoutAWarning) {
  const CurveChange change = curve_change(saved_by(plan_with("40"), 10), plan_with("40", "5e-4"));

  EXPECT_THAT(change.lines, ElementsAre(HasSubstr("learning rate: ")));
  EXPECT_EQ(change.warning, "");
}

}  // namespace
}  // namespace tessera::engine
