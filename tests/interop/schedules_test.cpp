// SPDX-License-Identifier: Apache-2.0
// The schedules that no recorded curve covers, at points computed by hand from their definitions.
#include <cmath>
#include <numbers>

#include "make_schedule.h"
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

// The rates are sums and products of a few float64 numbers.
constexpr double kRelative = 1e-13;

struct Point {
  std::int64_t update;
  double lr;
};

void expect_points(const MadeSchedule& made, std::initializer_list<Point> points) {
  made.problems.raise();
  for (const auto& [update, lr] : points)
    EXPECT_NEAR(made.lr(update), lr, kRelative * std::abs(lr)) << "update " << update;
}

const ScheduleContext unit_rate{.base_lr = 1.0};

// --- DeepSpeed ---

TEST(DeepSpeedCycle, StairCountsChangeNothing) {
  const std::string cycle =
      R"("cycle_min_lr": 0.1, "cycle_max_lr": 0.9, "cycle_first_step_size": 8)";

  const auto plain = make_schedule("OneCycle", "{" + cycle + "}");
  const auto stairs = make_schedule(
      "OneCycle",
      "{" + cycle + R"(, "cycle_first_stair_count": 2, "cycle_second_stair_count": 4})");

  expect_points(stairs, {{1, 0.1}, {4, 0.4}, {9, 0.9}, {17, 0.1}, {40, 0.1}});
  for (std::int64_t update = 1; update < 40; ++update)
    EXPECT_EQ(plain.lr(update), stairs.lr(update)) << update;
}

TEST(DeepSpeedCycle, MovesTheMomentumAgainstTheRateAndHoldsTheSecondBeta) {
  const auto made = make_schedule("OneCycle",
                                  R"({"cycle_min_lr": 0.1, "cycle_max_lr": 0.9,
                             "cycle_first_step_size": 8, "cycle_second_step_size": 4})");

  EXPECT_DOUBLE_EQ(*made.schedule->beta1(1), 0.8);  // before the first change
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(5), 0.85);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(9), 0.8);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(11), 0.85);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(13), 0.9);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(99), 0.9);
  EXPECT_EQ(made.schedule->beta2(5), 0.99);
}

// deepspeed.runtime.lr_schedules.OneCycle: "cycle_momentum is disabled because optimizer SGD does
// not support momentum", where the optimizer's defaults have no betas.
TEST(DeepSpeedCycle, LeavesTheMomentumOfOptimizersWithoutBetasAlone) {
  const auto made = make_schedule("OneCycle",
                                  R"({"cycle_min_lr": 0.1, "cycle_max_lr": 0.9})",
                                  {.base_lr = 1e-3, .has_betas = false});

  EXPECT_FALSE(made.schedule->beta1(5).has_value());
  EXPECT_FALSE(made.schedule->beta2(5).has_value());
}

TEST(DeepSpeedCycle, CanLeaveTheMomentumAlone) {
  const auto made = make_schedule(
      "OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 0.9, "cycle_momentum": false})");

  EXPECT_FALSE(made.schedule->beta1(5).has_value());
  EXPECT_FALSE(made.schedule->beta2(5).has_value());
}

// --- BMTrain ---

TEST(BmTrain, ItsParametersDistinguishItsLinearAndCosineFromHuggingFaces) {
  // With a warm-up of 10 both are half way up at the sixth update; only BMTrain's has a rate of its
  // own.
  expect_points(
      make_schedule("Linear", R"({"start_lr": 0.5, "warmup_iter": 10, "end_iter": 30})", unit_rate),
      {{6, 0.25}, {21, 0.25}, {31, 0.0}, {99, 0.0}});
  expect_points(
      make_schedule("linear", R"({"num_warmup_steps": 10, "num_training_steps": 30})", unit_rate),
      {{6, 0.5}, {21, 0.5}, {31, 0.0}});
  expect_points(make_schedule("COSINE", R"({"end_iter": 20})", unit_rate),
                {{1, 1.0}, {11, 0.5}, {21, 0.0}});
  expect_points(
      make_schedule("Cosine", R"({"num_training_steps": 20, "num_cycles": 1})", unit_rate),
      {{1, 1.0}, {6, 0.5}, {11, 0.0}, {21, 1.0}});
}

TEST(BmTrain, StartsFromTheOptimizersRateUnlessConfiguredOtherwise) {
  expect_points(make_schedule("NoDecay", R"({"warmup_iter": 4})", unit_rate),
                {{2, 0.25}, {5, 1.0}, {99, 1.0}});
  expect_points(make_schedule("Noam", R"({"warmup_iter": 4, "end_iter": -1})", unit_rate),
                {{1, 0.0}, {3, 0.25}, {5, 0.5}, {17, 0.25}});
  expect_points(make_schedule("Exponential", R"({"gamma": 0.5})", unit_rate),
                {{1, 1.0}, {4, 0.125}});
}

// --- Hugging Face ---

TEST(HuggingFace, CosineWithMinLrEndsThere) {
  const std::string lengths = R"("num_warmup_steps": 10, "num_training_steps": 50)";

  for (const char* lowest : {R"(, "min_lr": 1e-4})", R"(, "min_lr_rate": 0.1})"}) {
    expect_points(make_schedule("cosine_with_min_lr", "{" + lengths + lowest),
                  {{1, 0.0}, {6, 5e-4}, {11, 1e-3}, {31, 5.5e-4}, {51, 1e-4}});
  }
}

TEST(HuggingFace, CosineWarmupWithMinLrIsOneStepAhead) {
  const std::string lengths =
      R"("num_warmup_steps": 4, "num_training_steps": 12, "min_lr_rate": 0.1)";

  expect_points(make_schedule("cosine_warmup_with_min_lr", "{" + lengths + "}", unit_rate),
                {{1, 0.25}, {4, 1.0}, {8, 0.55}, {12, 0.1}});
  expect_points(
      make_schedule(
          "cosine_warmup_with_min_lr", "{" + lengths + R"(, "warmup_lr_rate": 0.4})", unit_rate),
      {{1, 0.4}, {2, 0.6}, {4, 1.0}, {8, 0.55}});
}

TEST(HuggingFace, CosineRestartsFromTheFullRateInEachCycle) {
  expect_points(
      make_schedule(
          "cosine_with_restarts", R"({"num_training_steps": 30, "num_cycles": 3})", unit_rate),
      {{1, 1.0}, {6, 0.5}, {11, 1.0}, {16, 0.5}, {21, 1.0}, {31, 0.0}, {40, 0.0}});
}

TEST(HuggingFace, PolynomialFallsWithItsPower) {
  const double end = 1e-5;
  expect_points(make_schedule("polynomial",
                              R"({"num_warmup_steps": 10, "num_training_steps": 110, "lr_end": 1e-5,
                         "power": 2})"),
                {{6, 5e-4}, {11, 1e-3}, {61, (1e-3 - end) / 4 + end}, {111, end}, {500, end}});
}

TEST(HuggingFace, InverseSqrtHasItsTimescale) {
  expect_points(make_schedule("inverse_sqrt", R"({"num_warmup_steps": 4})", unit_rate),
                {{3, 0.5}, {5, 1.0}, {17, 0.5}, {65, 0.25}});
  expect_points(
      make_schedule("inverse_sqrt", R"({"num_warmup_steps": 4, "timescale": 100})", unit_rate),
      {{5, 1.0}, {305, 0.5}});
  expect_points(make_schedule("inverse_sqrt", "{}", unit_rate), {{1, 1.0}, {30001, 0.5}});
}

TEST(HuggingFace, WarmupStableDecayHasThreePhasesOfThreeShapes) {
  const std::string lengths =
      R"({"num_warmup_steps": 8, "num_decay_steps": 20, "min_lr_ratio": 0.2, )";

  for (const std::string total : {R"("num_training_steps": 100)", R"("num_stable_steps": 72)"}) {
    expect_points(make_schedule("warmup_stable_decay", lengths + total + "}", unit_rate),
                  {{1, 0.2}, {5, 0.6}, {9, 1.0}, {80, 1.0}, {81, 1.0}, {91, 0.6}, {101, 0.2}});
    expect_points(
        make_schedule("warmup_stable_decay",
                      lengths + total + R"(, "warmup_type": "cosine", "decay_type": "linear"})",
                      unit_rate),
        {{5, 0.6}, {86, 0.8}, {101, 0.2}, {300, 0.2}});
    expect_points(
        make_schedule("warmup_stable_decay",
                      lengths + total + R"(, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"})",
                      unit_rate),
        {{7, 0.6}, {86, 0.6}, {101, 0.2}});
  }
}

TEST(Diffusers, PiecewiseConstantChangesAtItsSteps) {
  expect_points(
      make_schedule(
          "piecewise_constant", R"({"step_rules": "1:10, 0.1:20,0.01:30,0.005"})", unit_rate),
      {{1, 1.0}, {10, 1.0}, {11, 0.1}, {20, 0.1}, {21, 0.01}, {31, 0.005}, {999, 0.005}});
}

// --- Megatron-LM ---

TEST(MegatronSchedules, ClimbsFromItsFirstRateAndFallsInEachStyle) {
  const std::string lengths =
      R"({"lr_warmup_init": 0.2, "lr_warmup_iters": 10, "lr_decay_iters": 50, "min_lr": 0.1,
          "lr_decay_style": )";

  expect_points(make_schedule("Megatron", lengths + R"("linear"})", unit_rate),
                {{1, 0.2}, {6, 0.6}, {11, 1.0}, {31, 0.55}, {51, 0.1}, {52, 0.1}});
  expect_points(
      make_schedule("megatron", lengths + R"("cosine"})", unit_rate),
      {{1, 0.2}, {11, 1.0}, {21, 0.1 + 0.9 * (0.5 + std::numbers::sqrt2 / 4)}, {31, 0.55}});
  expect_points(make_schedule("Megatron", lengths + R"("inverse-square-root"})", unit_rate),
                {{6, 0.6}, {11, 1.0}, {41, 0.5}, {51, std::sqrt(0.2)}, {52, 0.1}});
  expect_points(make_schedule("Megatron", lengths + R"("constant"})", unit_rate),
                {{6, 0.6}, {11, 1.0}, {51, 1.0}, {999, 1.0}});
}

TEST(MegatronSchedules, WsdKeepsTheRateUntilItsTail) {
  const std::string lengths =
      R"({"lr_warmup_iters": 10, "lr_decay_iters": 100, "lr_wsd_decay_iters": 40, "min_lr": 0.2)";
  const auto tail = [&](const std::string& style) {
    return make_schedule(
        "WSD", lengths + R"(, "lr_wsd_decay_style": ")" + style + "\"}", unit_rate);
  };

  expect_points(tail("linear"), {{11, 1.0}, {61, 1.0}, {71, 0.8}, {101, 0.2}, {102, 0.2}});
  expect_points(tail("cosine"), {{61, 1.0}, {81, 0.6}, {101, 0.2}});
  expect_points(tail("minus_sqrt"), {{61, 1.0}, {71, 0.6}, {101, 0.2}});
  expect_points(tail("exponential"), {{81, 0.2 + 0.8 * (std::numbers::sqrt2 - 1)}, {101, 0.2}});
  EXPECT_EQ(make_schedule("WSD", lengths + "}", unit_rate).lr(81), tail("exponential").lr(81));
}

TEST(MegatronSchedules, ShorthandsAreTheStylesOfTheirNames) {
  const std::string lengths = R"("lr_warmup_iters": 4, "lr_decay_iters": 60)";

  const auto inverse = make_schedule("inverse-square-root", "{" + lengths + "}");
  const auto style =
      make_schedule("Megatron", "{" + lengths + R"(, "lr_decay_style": "inverse-square-root"})");
  const auto wsd = make_schedule("wsd", "{" + lengths + R"(, "lr_wsd_decay_iters": 9})");
  const auto wsd_style = make_schedule(
      "Megatron", "{" + lengths + R"(, "lr_wsd_decay_iters": 9, "lr_decay_style": "WSD"})");

  for (std::int64_t update = 1; update < 70; ++update) {
    EXPECT_EQ(inverse.lr(update), style.lr(update)) << update;
    EXPECT_EQ(wsd.lr(update), wsd_style.lr(update)) << update;
  }
}

TEST(MegatronSchedules, AFractionOfTheDecayIsAWarmup) {
  const auto made =
      make_schedule("Megatron", R"({"lr_warmup_fraction": 0.05, "lr_decay_iters": 50})", unit_rate);

  expect_points(made, {{1, 0.0}, {3, 0.8}, {4, 1.0 - 0.5 / 47.5}});  // 2.5 steps of warm-up
  EXPECT_EQ(made.schedule->warmup_steps(), 3);
}

TEST(MegatronSchedules, CountsSamplesWhenItsLengthsAre) {
  // Batches of 4, then of 8 from 16 samples on.
  const auto before = [](std::int64_t update) {
    return update <= 5 ? 4 * (update - 1) : 16 + 8 * (update - 5);
  };
  const auto made = make_schedule("Megatron",
                                  R"({"lr_warmup_samples": 20, "lr_decay_samples": 100})",
                                  {.base_lr = 1.0, .max_steps = 7, .samples_before = before});

  expect_points(made, {{1, 0.0}, {2, 0.2}, {5, 0.8}, {6, 1.0 - 4.0 / 80}, {9, 1.0 - 28.0 / 80}});
  EXPECT_EQ(made.schedule->warmup_steps(), 5);
  // The run's 32 samples are the default length.
  expect_points(make_schedule("Megatron",
                              R"({"lr_warmup_samples": 16})",
                              {.base_lr = 1.0, .max_steps = 6, .samples_before = before}),
                {{5, 1.0}, {6, 0.5}, {7, 0.0}});
}

// --- Colossal-AI and torch ---

TEST(Colossal, WarmupsReachTheFullRateAtTheirLastStep) {
  // i = 0 already has 1 / W; the schedule after the warm-up begins at i = W.
  expect_points(make_schedule("CosineAnnealingWarmupLR",
                              R"({"warmup_steps": 4, "total_steps": 24, "eta_min": 0.1})",
                              unit_rate),
                {{1, 0.25}, {4, 1.0}, {5, 1.0}, {15, 0.55}, {25, 0.1}});
  expect_points(
      make_schedule("PolynomialWarmupLR",
                    R"({"warmup_steps": 4, "total_steps": 24, "end_lr": 0.2, "power": 2})",
                    unit_rate),
      {{1, 0.25}, {4, 1.0}, {5, 1.0}, {15, 0.4}, {25, 0.2}, {99, 0.2}});
  // int(0.72 * 25) = 18 flat steps, then 7 of annealing.
  expect_points(make_schedule("FlatAnnealingWarmupLR",
                              R"({"warmup_steps": 5, "total_steps": 30, "eta_min": 0.2})",
                              unit_rate),
                {{1, 0.2}, {5, 1.0}, {23, 1.0}, {24, 1.0}, {31, 0.2}});
  expect_points(make_schedule("MultiStepWarmupLR",
                              R"({"warmup_steps": 4, "total_steps": 30, "milestones": [2, 4, 10]})",
                              unit_rate),
                {{1, 0.25}, {4, 1.0}, {5, 0.1}, {10, 0.1}, {11, 0.01}});
}

TEST(Colossal, LinearWarmupIsOneStepLonger) {
  expect_points(
      make_schedule("LinearWarmupLR", R"({"warmup_steps": 4, "total_steps": 24})", unit_rate),
      {{1, 0.2}, {4, 0.8}, {5, 1.0}, {15, 0.5}, {25, 0.0}, {30, 0.0}});
}

TEST(Colossal, SchedulesWithoutAWarmupBeginAtTheFullRate) {
  // torch's cosine rises again past its total.
  expect_points(
      make_schedule("CosineAnnealingLR", R"({"total_steps": 20, "eta_min": 0.1})", unit_rate),
      {{1, 1.0}, {11, 0.55}, {21, 0.1}, {31, 0.55}});
  expect_points(
      make_schedule("FlatAnnealingLR", R"({"total_steps": 20, "pct_start": 0.5})", unit_rate),
      {{1, 1.0}, {10, 1.0}, {11, 1.0}, {16, 0.5}, {21, 0.0}});
  expect_points(make_schedule("PolynomialLR", R"({"total_steps": 20})", unit_rate),
                {{1, 1.0}, {11, 0.5 * (1.0 + 1e-4)}, {21, 1e-4}, {99, 1e-4}});
  expect_points(make_schedule("MultiStepLR", R"({"milestones": [3, 5], "gamma": 0.5})", unit_rate),
                {{1, 1.0}, {3, 1.0}, {4, 0.5}, {5, 0.5}, {6, 0.25}, {99, 0.25}});
  expect_points(make_schedule("StepLR", R"({"step_size": 10, "gamma": 0.5})", unit_rate),
                {{1, 1.0}, {10, 1.0}, {11, 0.5}, {31, 0.125}});
  expect_points(make_schedule("ExponentialLR", R"({"gamma": 0.5})", unit_rate),
                {{1, 1.0}, {4, 0.125}});
  expect_points(make_schedule("ConstantLR", R"({"factor": 0.25, "total_iters": 4})", unit_rate),
                {{1, 0.25}, {4, 0.25}, {5, 1.0}, {99, 1.0}});
}

TEST(OneCycleLr, ClimbsFallsAndEndsFarBelow) {
  const std::string lengths = R"({"total_steps": 100, "div_factor": 10, "final_div_factor": 100)";

  const auto made = make_schedule("OneCycleLR", lengths + "}", unit_rate);

  // 0.3 * 100 - 1 = 29 steps up, 99 - 29 = 70 down.
  expect_points(made, {{1, 0.1}, {30, 1.0}, {65, (1.0 + 0.001) / 2}, {100, 0.001}, {150, 0.001}});
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(1), 0.95);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(30), 0.85);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(65), 0.9);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(100), 0.95);
  EXPECT_FALSE(made.schedule->beta2(30).has_value());
  expect_points(
      make_schedule(
          "OneCycleLR", lengths + R"(, "anneal_strategy": "linear", "max_lr": 2})", unit_rate),
      {{1, 0.2}, {30, 2.0}, {44, 2.0 - 0.2 * (2.0 - 0.002)}, {100, 0.002}});
  EXPECT_FALSE(make_schedule("OneCycleLR", lengths + R"(, "cycle_momentum": false})", unit_rate)
                   .schedule->beta1(5)
                   .has_value());
}

TEST(OneCycleLr, ThreePhasesComeBackToTheFirstRateBeforeTheyEnd) {
  const auto made = make_schedule("OneCycleLR",
                                  R"({"total_steps": 100, "div_factor": 10, "final_div_factor": 100,
                             "three_phase": true})",
                                  unit_rate);

  expect_points(made, {{1, 0.1}, {30, 1.0}, {59, 0.1}, {100, 0.001}});
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(30), 0.85);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(59), 0.95);
  EXPECT_DOUBLE_EQ(*made.schedule->beta1(80), 0.95);
}

}  // namespace
}  // namespace tessera::optim
