// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/schedule.h"

#include <cmath>
#include <map>

#include "make_schedule.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::optim {
namespace {

using testing::HasSubstr;

TEST(Schedule, ConstantKeepsTheOptimizersRate) {
  const auto made = make_schedule("", "{}", {.base_lr = 3e-4});

  EXPECT_DOUBLE_EQ(made.schedule->lr(1), 3e-4);
  EXPECT_DOUBLE_EQ(made.schedule->lr(1000), 3e-4);
  EXPECT_EQ(made.schedule->warmup_steps(), 0);
  EXPECT_FALSE(made.schedule->beta1(1).has_value());
  EXPECT_FALSE(made.schedule->beta2(1).has_value());
}

TEST(Schedule, WarmupCosineClimbsInALineAndEndsAtItsMinimum) {
  const auto made = make_schedule("warmupcosine",
                                  R"({"initial_lr": 1e-5, "min_lr": 1e-4, "warmup_num_steps": 10})",
                                  {.base_lr = 1e-3, .max_steps = 110});

  EXPECT_DOUBLE_EQ(made.schedule->lr(1), 1e-5);
  EXPECT_NEAR(made.schedule->lr(6), 1e-5 + 5 * (1e-3 - 1e-5) / 10, 1e-15);
  EXPECT_DOUBLE_EQ(made.schedule->lr(11), 1e-3);
  EXPECT_NEAR(made.schedule->lr(61), (1e-3 + 1e-4) / 2, 1e-15);  // half way down
  EXPECT_NEAR(made.schedule->lr(111), 1e-4, 1e-15);
  EXPECT_NEAR(made.schedule->lr(500), 1e-4, 1e-15);
  EXPECT_EQ(made.schedule->warmup_steps(), 10);
}

/// The parameters that a schedule requires.
std::string needed(const std::string& name) {
  static const std::map<std::string, std::string> table = {
      {"Noam", R"("warmup_iter": 10)"},
      {"OneCycle", R"("cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3)"},
      {"MultiStepLR", R"("milestones": [20, 40])"},
      {"MultiStepWarmupLR", R"("milestones": [20, 40])"},
      {"WSD", R"("lr_wsd_decay_iters": 10)"},
      {"cosine_with_min_lr", R"("min_lr": 1e-4)"},
      {"cosine_warmup_with_min_lr", R"("min_lr_rate": 0.1)"},
      {"inverse-square-root", R"("lr_warmup_iters": 10)"},
      {"piecewise_constant", R"("step_rules": "1:10,0.5")"},
      {"warmup_stable_decay", R"("num_decay_steps": 10)"}};
  const auto it = table.find(name);
  return it == table.end() ? "" : it->second;
}

TEST(Schedule, TheRunsLengthIsTheDefaultOfEveryTotal) {
  const ScheduleContext context{.base_lr = 1e-3, .max_steps = 50};

  for (const auto& [type, key] : {std::pair("linear", "num_training_steps"),
                                  std::pair("cosine", "num_training_steps"),
                                  std::pair("cosine_with_restarts", "num_training_steps"),
                                  std::pair("cosine_with_min_lr", "num_training_steps"),
                                  std::pair("cosine_warmup_with_min_lr", "num_training_steps"),
                                  std::pair("polynomial", "num_training_steps"),
                                  std::pair("warmup_stable_decay", "num_training_steps"),
                                  std::pair("WarmupDecayLR", "total_num_steps"),
                                  std::pair("WarmupCosineLR", "total_num_steps"),
                                  std::pair("WarmupCosine", "total_num_steps"),
                                  std::pair("Megatron", "lr_decay_iters"),
                                  std::pair("WSD", "lr_decay_iters"),
                                  std::pair("inverse-square-root", "lr_decay_iters"),
                                  std::pair("CosineAnnealingLR", "total_steps"),
                                  std::pair("CosineAnnealingWarmupLR", "total_steps"),
                                  std::pair("FlatAnnealingLR", "total_steps"),
                                  std::pair("FlatAnnealingWarmupLR", "total_steps"),
                                  std::pair("LinearWarmupLR", "total_steps"),
                                  std::pair("OneCycleLR", "total_steps"),
                                  std::pair("PolynomialLR", "total_steps"),
                                  std::pair("PolynomialWarmupLR", "total_steps")}) {
    const std::string short_warmup =
        type == std::string("WarmupDecayLR") || type == std::string("WarmupCosineLR")
            ? R"("warmup_num_steps": 10)"
            : "";
    const std::string other = needed(type) + short_warmup, comma = other.empty() ? "" : ", ";
    const auto implied = make_schedule(type, "{" + other + "}", context);
    const auto given = make_schedule(type, "{" + other + comma + "\"" + key + "\": 50}");
    EXPECT_TRUE(implied.problems.empty() && given.problems.empty()) << type;
    EXPECT_EQ(implied.lr(47), given.lr(47)) << type;
    EXPECT_EQ(implied.lr(60), given.lr(60)) << type;
    const auto longer = make_schedule(type, "{" + other + comma + "\"" + key + "\": 5000}");
    EXPECT_NE(given.lr(60), longer.lr(60)) << type;
  }
}

TEST(Schedule, EveryOneGivesFiniteRatesWithAsFewParametersAsItTakes) {
  for (const std::string& name : schedules().names()) {
    for (const std::int64_t max_steps : {0, 1, 2, 5, 50}) {
      const auto made =
          make_schedule(name, "{" + needed(name) + "}", {.base_lr = 1e-3, .max_steps = max_steps});

      const bool fits = max_steps != 5 && max_steps != 2 && max_steps != 1;
      EXPECT_TRUE(made.problems.empty() || !fits) << name << " in " << max_steps;
      for (std::int64_t update = 1; update < 3000; update += update < 60 ? 1 : 7) {
        const double lr = made.lr(update);
        EXPECT_TRUE(std::isfinite(lr) && lr >= 0.0) << name << " at " << update;
        // The range test is meant to leave every range.
        EXPECT_TRUE(lr <= 1e-3 + 1e-15 || name == "LRRangeTest") << name << " at " << update;
      }
    }
  }
}

TEST(Schedule, EveryOneIsDocumented) {
  const std::string page = files::read(test::source_dir().string() + "/docs/schedules.md");

  for (const std::string& name : schedules().names())
    EXPECT_THAT(page, HasSubstr("`" + name + "`")) << name;
}

TEST(Schedule, WrongParametersAreAllReportedWithTheirPlaces) {
  const auto made = make_schedule(
      "WarmupLR",
      "{\"warmup_max_lrr\": 1,\n \"warmup_type\": \"logg\",\n \"warmup_num_steps\": \"x\"}",
      {.base_lr = 1e-3});

  ASSERT_EQ(made.problems.list().size(), 3U);
  EXPECT_THAT(
      made.problems.list()[0].fix + made.problems.list()[1].fix + made.problems.list()[2].fix,
      HasSubstr("warmup_max_lr"));
  for (const auto& problem : made.problems.list())
    EXPECT_GT(problem.place.line, 0) << problem.path;
}

TEST(DeepSpeedSchedules, BeginAtTheBeginningAlone) {
  for (const std::string type :
       {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"}) {
    const std::string others = needed(type) + (needed(type).empty() ? "" : ", ");
    const ScheduleContext context{.base_lr = 1e-3, .max_steps = 2000};
    const auto plain = make_schedule(type, "{" + needed(type) + "}", context);
    const auto said = make_schedule(type, "{" + others + "\"last_batch_iteration\": -1}", context);
    const auto later = make_schedule(type, "{" + others + "\"last_batch_iteration\": 99}", context);

    EXPECT_TRUE(said.problems.empty()) << type;
    EXPECT_EQ(said.lr(7), plain.lr(7)) << type;
    ASSERT_EQ(later.problems.list().size(), 1U) << type;
    EXPECT_EQ(later.problems.list()[0].path, "last_batch_iteration");
    EXPECT_THAT(later.problems.list()[0].what, HasSubstr("99"));
    EXPECT_THAT(later.problems.list()[0].what, HasSubstr("a resume determines its step by itself"));
    EXPECT_THAT(later.problems.list()[0].fix, HasSubstr("-1"));
  }
}

struct Wrong {
  std::string type, params, path, what;
};
class WrongParameters : public testing::TestWithParam<Wrong> {};

TEST_P(WrongParameters, AreRefusedAtTheirPlace) {
  const Wrong& wrong = GetParam();

  const auto made =
      make_schedule(wrong.type, "\n" + wrong.params, {.base_lr = 1e-3, .max_steps = 100});

  ASSERT_EQ(made.problems.list().size(), 1U);
  const auto& problem = made.problems.list().front();
  EXPECT_EQ(problem.path, wrong.path);
  EXPECT_THAT(problem.what, HasSubstr(wrong.what));
  EXPECT_EQ(problem.place.line, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Schedule,
    WrongParameters,
    testing::Values(
        // A total that is given must come after the warm-up where the library divides by their
        // difference, or asserts it.
        Wrong{"Linear", R"({"warmup_iter": 20, "end_iter": 10})", "end_iter", "warm-up of 20"},
        Wrong{"PolynomialWarmupLR",
              R"({"warmup_steps": 20, "total_steps": 20})",
              "total_steps",
              "warm-up of 20"},
        Wrong{"Megatron",
              R"({"lr_warmup_iters": 20, "lr_decay_iters": 10})",
              "lr_decay_iters",
              "warm-up of 20"},
        // DeepSpeed
        Wrong{"OneCycle", R"({"cycle_min_lr": 1e-4})", "cycle_max_lr", "missing"},
        Wrong{"OneCycle",
              R"({"decay_mom_rate": 0.1, "decay_step_size": 10, "cycle_first_step_size": 10,
                  "cycle_min_lr": 1e-4, "cycle_max_lr": 1})",
              "decay_mom_rate",
              "by step 100"},
        Wrong{"LRRangeTest",
              R"({"lr_range_test_step_size": 0})",
              "lr_range_test_step_size",
              "least 1"},
        // BMTrain: its names need its parameters
        Wrong{"Noam", R"({"start_lr": 0.1})", "warmup_iter", "missing"},
        Wrong{"cosine", R"({"start_lr": 1, "num_cycles": 1})", "num_cycles", "unknown"},
        Wrong{"cosine", R"({"num_cycles": 1, "gamma": 1})", "gamma", "unknown"},
        // Hugging Face
        Wrong{"polynomial", R"({"lr_end": 1e-3})", "lr_end", "not below"},
        Wrong{"cosine_with_min_lr", "{}", "min_lr", "missing"},
        Wrong{"cosine_with_min_lr",
              R"({"min_lr": 1e-4, "min_lr_rate": 0.1})",
              "min_lr",
              "together with"},
        Wrong{"cosine_with_min_lr", R"({"min_lr": -1})", "min_lr", "at least 0"},
        Wrong{"warmup_stable_decay", "{}", "num_decay_steps", "missing"},
        Wrong{"warmup_stable_decay",
              R"({"num_warmup_steps": 30, "num_decay_steps": 71})",
              "num_decay_steps",
              "do not fit into 100"},
        Wrong{"warmup_stable_decay",
              R"({"num_decay_steps": 10, "num_stable_steps": 20, "num_training_steps": 40})",
              "num_training_steps",
              "0 + 20 + 10 = 30"},
        Wrong{"piecewise_constant", R"({"step_rules": "1:10,0.1:5,1"})", "step_rules", "after 10"},
        Wrong{"piecewise_constant", R"({"step_rules": "1:10"})", "step_rules", "last factor"},
        Wrong{"piecewise_constant", R"({"step_rules": "1:x,1"})", "step_rules", "\"1:x\""},
        Wrong{"piecewise_constant", R"({"step_rules": ""})", "step_rules", "last factor"},
        Wrong{"piecewise_constant", "{}", "step_rules", "missing"},
        // Megatron
        Wrong{"WSD", "{}", "lr_wsd_decay_iters", "missing"},
        Wrong{"WSD",
              R"({"lr_warmup_iters": 50, "lr_wsd_decay_iters": 60})",
              "lr_wsd_decay_iters",
              "do not fit into 100"},
        Wrong{"Megatron", R"({"lr_wsd_decay_iters": 6})", "lr_wsd_decay_iters", "no effect"},
        Wrong{"Megatron", R"({"min_lr": 0.1})", "min_lr", "above the optimizer's rate"},
        Wrong{"Megatron", R"({"lr_warmup_init": 0.1})", "lr_warmup_init", "above"},
        Wrong{"Megatron",
              R"({"lr_warmup_iters": 1, "lr_decay_samples": 99})",
              "lr_decay_samples",
              "lr_warmup_iters counts steps"},
        Wrong{"Megatron", R"({"lr_decay_samples": 99})", "lr_decay_samples", "not known"},
        Wrong{"Megatron",
              R"({"lr_warmup_iters": 1, "lr_warmup_fraction": 0.1})",
              "lr_warmup_fraction",
              "together with lr_warmup_iters"},
        Wrong{"inverse-square-root", "{}", "lr_warmup_iters", "missing"},
        Wrong{"Megatron",
              R"({"override_opt_param_scheduler": false})",
              "override_opt_param_scheduler",
              "follows its configuration"},
        Wrong{"Megatron",
              R"({"use_checkpoint_opt_param_scheduler": true})",
              "use_checkpoint_opt_param_scheduler",
              "follows its configuration"},
        // Colossal-AI and torch
        Wrong{"MultiStepLR", "{}", "milestones", "missing"},
        Wrong{"MultiStepLR", R"({"milestones": [5, 5]})", "milestones[1]", "after 5"},
        Wrong{"MultiStepLR", R"({"milestones": [5.5]})", "milestones[0]", "an integer"},
        Wrong{"FlatAnnealingLR", R"({"pct_start": 1.5})", "pct_start", "at most 1"},
        Wrong{"OneCycleLR", R"({"three_phase": true, "pct_start": 0.6})", "pct_start", "third"}));

// transformers 5 and DeepSpeed 0.19 compute the rates of a total within the warm-up: the warm-up is
// that of a longer schedule, and after it the rate is the lowest one.
TEST(Schedule, ATotalWithinTheWarmupHasTheRatesOfItsLibrary) {
  struct Case {
    std::string type, params;
    double after;  // the rate when warm-up and total have passed, as a share of the optimizer's
  };
  const std::string six = R"("num_warmup_steps": 6, "num_training_steps": 6)";
  for (const Case& one : {Case{"linear", "{" + six + "}", 0.0},
                          Case{"linear", R"({"num_warmup_steps": 6, "num_training_steps": 3})", 0},
                          Case{"polynomial", "{" + six + R"(, "lr_end": 1e-4})", 0.1},
                          Case{"cosine_with_restarts", "{" + six + "}", 0.0},
                          Case{"warmup_stable_decay",
                               "{" + six + R"(, "num_decay_steps": 2,
                               "min_lr_ratio": 0.1})",
                               0.1}}) {
    const auto made = make_schedule(one.type, one.params, {.base_lr = 1e-3, .max_steps = 100});

    EXPECT_TRUE(made.problems.empty()) << one.type;
    for (std::int64_t update = 1; update <= 6; ++update) {
      const double share = static_cast<double>(update - 1) / 6;
      const double first = one.type == "warmup_stable_decay" ? 0.1 : 0.0;
      EXPECT_NEAR(made.lr(update), 1e-3 * (first + (1 - first) * share), 1e-15)
          << one.type << " at " << update;
    }
    EXPECT_NEAR(made.lr(9), 1e-3 * one.after, 1e-15) << one.type;
  }
  // DeepSpeed's WarmupDecayLR counts from update - 2: max(0, (6 - t) / max(1, 6 - 6)).
  const auto decay =
      make_schedule("WarmupDecayLR",
                    R"({"total_num_steps": 6, "warmup_num_steps": 6, "warmup_type": "linear"})",
                    {.base_lr = 1e-3});
  EXPECT_TRUE(decay.problems.empty());
  EXPECT_NEAR(decay.lr(7), 1e-3 * 5 / 6, 1e-15);
  EXPECT_EQ(decay.lr(9), 0.0);
}

TEST(Schedule, AQuickTryMayEndWithinTheWarmupAndHasItsRates) {
  const auto quick = make_schedule(
      "WarmupCosine", R"({"warmup_num_steps": 100})", {.base_lr = 1e-3, .max_steps = 5});

  EXPECT_TRUE(quick.problems.empty());
  EXPECT_DOUBLE_EQ(quick.lr(5), 4e-5);
}

TEST(Schedule, ARateThatDependsOnMoreThanTheUpdateIsRefusedWithTheReason) {
  for (const auto& [type, reason] : {std::pair("reduce_lr_on_plateau", "evaluation loss"),
                                     std::pair("ReduceLROnPlateau", "evaluation loss"),
                                     std::pair("LambdaLR", "function in program code"),
                                     std::pair("multiplicativelr", "function in program code")}) {
    try {
      schedule_factory(type);
      ADD_FAILURE() << type << " was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  }
}

TEST(Schedule, MisspeltNamesGetTheNearestOne) {
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
