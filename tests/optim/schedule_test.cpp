// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using testing::HasSubstr;

struct Made {
  std::unique_ptr<Schedule> schedule;
  config::Problems problems;
};

Made make(const std::string& type, const std::string& params, ScheduleContext context) {
  Made made;
  config::Origins origins;
  made.schedule =
      schedule_factory(type)(json::parse(params, "config.json"), context, made.problems, origins);
  return made;
}

TEST(Schedule, ConstantKeepsTheOptimizersRate) {
  const auto made = make("", "{}", {.base_lr = 3e-4});

  EXPECT_DOUBLE_EQ(made.schedule->lr(1), 3e-4);
  EXPECT_DOUBLE_EQ(made.schedule->lr(1000), 3e-4);
  EXPECT_EQ(made.schedule->warmup_steps(), 0);
}

TEST(Schedule, WarmupCosineClimbsInALineAndEndsAtItsMinimum) {
  const auto made = make("warmupcosine",
                         R"({"initial_lr": 1e-5, "min_lr": 1e-4, "warmup_num_steps": 10})",
                         {.base_lr = 1e-3, .max_steps = 110});

  EXPECT_DOUBLE_EQ(made.schedule->lr(1), 1e-5);
  EXPECT_NEAR(made.schedule->lr(6), 1e-5 + 5 * (1e-3 - 1e-5) / 10, 1e-15);
  EXPECT_DOUBLE_EQ(made.schedule->lr(11), 1e-3);
  EXPECT_NEAR(made.schedule->lr(61), (1e-3 + 1e-4) / 2, 1e-15);  // half of the way
  EXPECT_NEAR(made.schedule->lr(111), 1e-4, 1e-15);
  EXPECT_NEAR(made.schedule->lr(500), 1e-4, 1e-15);
  EXPECT_EQ(made.schedule->warmup_steps(), 10);
}

TEST(Schedule, TheRunsLengthIsTheDefaultOfEveryTotal) {
  const ScheduleContext context{.base_lr = 1e-3, .max_steps = 50};

  for (const auto& [type, key] : {std::pair("linear", "num_training_steps"),
                                  std::pair("cosine", "num_training_steps"),
                                  std::pair("WarmupDecayLR", "total_num_steps"),
                                  std::pair("WarmupCosineLR", "total_num_steps"),
                                  std::pair("WarmupCosine", "total_num_steps")}) {
    const auto implied = make(type, "{}", context);
    const auto given = make(type, std::string("{\"") + key + "\": 50}", {.base_lr = 1e-3});
    EXPECT_TRUE(implied.problems.empty() && given.problems.empty()) << type;
    EXPECT_EQ(implied.schedule->lr(37), given.schedule->lr(37)) << type;
  }
}

TEST(Schedule, EveryOneGivesFiniteRatesWithoutParameters) {
  for (const std::string& name : schedules().names()) {
    const auto made = make(name, "{}", {.base_lr = 1e-3});

    EXPECT_TRUE(made.problems.empty()) << name;
    for (std::int64_t update = 1; update < 3000; update += 7) {
      EXPECT_GE(made.schedule->lr(update), 0.0) << name << " at " << update;
      EXPECT_LE(made.schedule->lr(update), 1e-3 + 1e-15) << name << " at " << update;
    }
  }
}

TEST(Schedule, WrongParametersAreAllToldWithTheirPlaces) {
  const auto made =
      make("WarmupLR",
           "{\"warmup_max_lrr\": 1,\n \"warmup_type\": \"logg\",\n \"warmup_num_steps\": \"x\"}",
           {.base_lr = 1e-3});

  ASSERT_EQ(made.problems.list().size(), 3U);
  EXPECT_THAT(
      made.problems.list()[0].fix + made.problems.list()[1].fix + made.problems.list()[2].fix,
      HasSubstr("warmup_max_lr"));
  for (const auto& problem : made.problems.list())
    EXPECT_GT(problem.place.line, 0) << problem.path;
}

TEST(Schedule, PlannedOnesAreNotBuiltYetAndOthersGetTheNearestName) {
  try {
    schedule_factory("onecycle");
    FAIL() << "OneCycle was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.what(), HasSubstr("not built yet"));
  }
  try {
    schedule_factory("WarmupCosin");
    FAIL() << "a misspelt name was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.fix(), HasSubstr("WarmupCosine"));
  }
}

}  // namespace
}  // namespace tessera::optim
