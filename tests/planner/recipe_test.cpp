// SPDX-License-Identifier: Apache-2.0
// Warnings about learning rates: warm-ups that never end, and lowest rates above the optimizer's.
#include "tessera/planner/recipe.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/optim/make_schedule.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(const std::string& members) {
  return make_plan(json::parse(R"({"model": {"preset": "nano"}, "train_batch_size": 4,
                      "data": {"train": "a.txt", "sequence_length": 64}, )" +
                                   members + "}",
                               "c.json"),
                   1,
                   "c.json");
}

TEST(ScheduleWarnings, AShortRunWithinItsWarmupIsReported) {
  // Rate k of the schedule is that of update k + 1: the peak is the rate of update 101.
  for (const std::string params :
       {R"({"type": "WarmupCosine", "params": {"warmup_num_steps": 100}})",
        R"({"type": "WarmupLR", "params": {"warmup_num_steps": 100}})",
        R"({"type": "linear", "params": {"num_warmup_steps": 100}})"}) {
    const Plan plan = plan_of(R"("scheduler": )" + params);

    EXPECT_THAT(optim::warmup_note(plan.recipe().scheduler, 5).value_or(""),
                AllOf(HasSubstr("5 steps"), HasSubstr("warm-up of 100")));
    EXPECT_TRUE(optim::warmup_note(plan.recipe().scheduler, 100));
    EXPECT_FALSE(optim::warmup_note(plan.recipe().scheduler, 101));
  }
  EXPECT_FALSE(optim::warmup_note(plan_of(R"("trainer": {"seed": 1})").recipe().scheduler, 1));
}

std::vector<std::string> schedule_warnings_of(const std::string& scheduler,
                                              std::int64_t steps = 1000) {
  const Plan plan = plan_of(R"("optimizer": {"params": {"lr": 5e-5}}, "scheduler": )" + scheduler);
  return schedule_warnings(plan.recipe(), {.max_steps = steps});
}

// Each rate or share of a schedule that should be below the optimizer's rate is reported with both
// numbers, in whatever schedule it stands.
TEST(ScheduleWarnings, LowestRatesAboveTheOptimizersAreReported) {
  struct Case {
    std::string type, key, low, high;
  };
  for (const Case& one : {Case{"WarmupCosine", "min_lr", "5e-5", "1e-4"},
                          Case{"WarmupCosine", "initial_lr", "5e-5", "1e-4"},
                          Case{"CosineAnnealingLR", "eta_min", "5e-5", "1e-4"},
                          Case{"PolynomialLR", "end_lr", "5e-5", "1e-4"},
                          Case{"cosine_with_min_lr", "min_lr", "5e-5", "1e-4"},
                          Case{"cosine_with_min_lr", "min_lr_rate", "1", "2"},
                          Case{"WarmupCosineLR", "cos_min_ratio", "1", "2"},
                          Case{"WarmupCosineLR", "warmup_min_ratio", "1", "2"}}) {
    const auto params = [&](const std::string& value) {
      return fmt::format(R"({{"type": "{}", "params": {{"{}": {}}}}})", one.type, one.key, value);
    };
    EXPECT_THAT(schedule_warnings_of(params(one.high), 5000),
                testing::ElementsAre(AllOf(HasSubstr("scheduler.params." + one.key),
                                           HasSubstr(text::number(1e-4)),
                                           HasSubstr(text::number(5e-5)))))
        << one.type;
    EXPECT_THAT(schedule_warnings_of(params(one.low), 5000), testing::IsEmpty()) << one.type;
  }
}

TEST(ScheduleWarnings, ATotalWithinTheWarmupIsReported) {
  EXPECT_THAT(schedule_warnings_of(R"({"type": "linear", "params": {"num_warmup_steps": 20,
                                       "num_training_steps": 10}})"),
              testing::ElementsAre(AllOf(HasSubstr("num_training_steps 10"),
                                         HasSubstr("warm-up of 20 steps"),
                                         HasSubstr("learning rate is 0"))));
  // The run ends within the warm-up as well: one sentence is enough.
  EXPECT_THAT(schedule_warnings_of(R"({"type": "linear", "params": {"num_warmup_steps": 20,
                                       "num_training_steps": 10}})",
                                   20),
              testing::ElementsAre(HasSubstr("the run of 20 steps ends within the warm-up of 20")));
  EXPECT_THAT(schedule_warnings_of(R"({"type": "linear", "params": {"num_warmup_steps": 20}})", 21),
              testing::IsEmpty());
}

}  // namespace
}  // namespace tessera::planner
