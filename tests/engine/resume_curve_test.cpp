// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/resume_curve.h"

#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::engine {
namespace {

using tessera::test::TinyRun;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

planner::Plan plan_with(const std::string& max_steps, const std::string& lr = "1e-3") {
  TinyRun run;
  run.set("trainer.max_steps", max_steps)
      .set("optimizer.params.lr", lr)
      .set("scheduler", R"({"type": "linear", "params": {"num_warmup_steps": 0}})");
  planner::Plan plan = run.plan({});
  plan.max_steps = std::stoll(max_steps);
  return plan;
}

checkpoint::Meta saved_by(const planner::Plan& plan, std::int64_t step) {
  checkpoint::Meta meta;
  meta.config = plan.resolved;
  meta.step = step;
  return meta;
}

TEST(ResumeCurve, SaysNothingOfTheSameCurve) {
  const planner::Plan plan = plan_with("40");

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
  EXPECT_THAT(change.warning, AllOf(HasSubstr("rises"), HasSubstr("40 steps")));
}

TEST(ResumeCurve, ListsALowerRateWithoutAWarning) {
  const CurveChange change = curve_change(saved_by(plan_with("40"), 10), plan_with("40", "5e-4"));

  EXPECT_THAT(change.lines, ElementsAre(HasSubstr("learning rate: ")));
  EXPECT_EQ(change.warning, "");
}

}  // namespace
}  // namespace tessera::engine
