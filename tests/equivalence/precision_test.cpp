// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Scaled losses: every rank skips the same overflows, which leave no trace after a restart. Also
// training without fp32 master weights.
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Every parameter is really sharded in stage 3.
TinyRun fp16_run(const std::string& block) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0").set("fp16", block);
  return run;
}

/// The error of a training; empty if it has none.
std::string failure(const TinyRun& run, const Layout& layout, std::int64_t steps) {
  try {
    static_cast<void>(run.train(layout, steps));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 7) << error.text();
    return error.text();
  }
  return "";
}

// 2^40 times any gradient of this model is beyond fp16; one overflow is enough to halve.
constexpr const char* kFarTooLarge =
    R"({"enabled": true, "initial_scale_power": 40, "hysteresis": 1})";
// Some overflows, then training.
constexpr const char* kTooLarge =
    R"({"enabled": true, "initial_scale_power": 26, "hysteresis": 1})";

TEST(LossScaling, OverflowsAreSkippedAlikeInEveryStageAndHalveTheScale) {
  const TinyRun run = fp16_run(kFarTooLarge);
  const Trace untouched = run.train({.ranks = 2}, 0);

  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const Trace trace = run.train({.ranks = 2, .stage = stage}, 3);

    EXPECT_THAT(trace.loss_scales, ElementsAre(0x1p40, 0x1p39, 0x1p38));
    EXPECT_THAT(trace.skipped, ElementsAre(1, 2, 3));
    EXPECT_EQ(trace.digest, untouched.digest);  // neither weights nor moments
    EXPECT_THAT(trace.rates, Each(trace.rates.front()));
  }
}

TEST(LossScaling, StageZeroHalvesAtTheFirstOverflowAndTheOthersAtTheSecond) {
  // DeepSpeed's two optimizers of fp16: the one of stage 0 has no hysteresis, which is 2 by
  // default.
  const TinyRun run = fp16_run(R"({"enabled": true, "initial_scale_power": 40})");

  EXPECT_THAT(run.train({.ranks = 2, .stage = 0}, 3).loss_scales,
              ElementsAre(0x1p40, 0x1p39, 0x1p38));
  for (const int stage : {1, 2, 3})
    EXPECT_THAT(run.train({.ranks = 2, .stage = stage}, 3).loss_scales,
                ElementsAre(0x1p40, 0x1p40, 0x1p39));
}

TEST(LossScaling, EverySkipNamesTheRankMicroBatchBlockAndTensor) {
  for (const Layout& layout : {Layout{.ranks = 2, .stage = 2},
                               Layout{.ranks = 2, .accumulation = 2, .stage = 3},
                               Layout{.ranks = 2, .stage = 1, .pipeline = "2"}}) {
    const Trace trace = fp16_run(kFarTooLarge).train(layout, 4);

    EXPECT_THAT(trace.skip_reasons,
                Each(AllOf(HasSubstr("the gradient of "),
                           HasSubstr(" in block "),
                           HasSubstr(" (micro-batch 0) is not finite; loss scale "))));
    EXPECT_THAT(trace.skip_reasons[0], HasSubstr("loss scale 1099511627776 -> 549755813888"));
    // The last stage runs its backward first.
    EXPECT_THAT(trace.skip_reasons,
                Each(HasSubstr(layout.pipeline.empty() ? " on rank 0 " : " on rank 1 ")));
  }
}

TEST(Nonfinite, ASkipWithoutALossScaleNamesThemToo) {
  TinyRun run;
  run.set("optimizer.params.lr", "1e30")
      .set("scheduler", "{}")
      .set("gradient_clipping", "0")
      .set("trainer.on_nonfinite", "\"skip\"");

  const Trace trace = run.train({.ranks = 2, .stage = 1}, 5);

  ASSERT_GT(trace.skipped.back(), 0);
  EXPECT_THAT(trace.skip_reasons.back(),
              AllOf(HasSubstr("the gradient of "), HasSubstr(" on rank 0 (micro-batch 0) is not")));
}

TEST(LossScaling, AfterOverflowsTrainingIsTheSameInEveryLayout) {
  const TinyRun run = fp16_run(kTooLarge);
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 1}, 9);
  ASSERT_GT(reference.skipped.back(), 2);
  ASSERT_LT(reference.skipped.back(), 7);

  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    expect_same_bits(reference, run.train({.ranks = 2, .accumulation = 2, .stage = stage}, 9));
  }
  expect_same_bits(reference, run.train({.ranks = 4, .accumulation = 1, .stage = 3}, 9));
}

TEST(LossScaling, ASkippedStepDoesNotAdvanceTheSchedule) {
  const Trace late = fp16_run(kTooLarge).train({}, 9), plain = TinyRun().train({}, 9);
  const auto skipped = static_cast<std::size_t>(late.skipped.back());
  ASSERT_GT(skipped, 0U);
  ASSERT_LT(skipped, 8U);

  const std::vector<double> moved(late.rates.begin() + static_cast<long>(skipped),
                                  late.rates.end());
  EXPECT_EQ(
      moved,
      std::vector<double>(plain.rates.begin(), plain.rates.end() - static_cast<long>(skipped)));
}

// fp16 rounds to 11 bits, and a few thousand values go into each norm.
constexpr double kHalfTolerance = 5e-3;

TEST(LossScaling, LeavesTheSizeOfGradientsAsItIs) {
  for (const char* clip : {"0", "0.01"}) {
    SCOPED_TRACE(clip);
    TinyRun plain, half = fp16_run(R"({"enabled": true})"),
                   fixed = fp16_run(R"({"enabled": true, "loss_scale": 300})");
    for (TinyRun* run : {&plain, &half, &fixed})
      run->set("gradient_clip_value", clip);
    const Trace wide = plain.train({.ranks = 2}, 3), narrow = half.train({.ranks = 2}, 3),
                odd = fixed.train({.ranks = 2}, 3);

    EXPECT_EQ(narrow.skipped.back(), 0);
    EXPECT_THAT(odd.loss_scales, Each(300));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], kHalfTolerance * wide.losses[i]);
      EXPECT_NEAR(narrow.grad_norms[i], wide.grad_norms[i], kHalfTolerance * wide.grad_norms[i]);
      EXPECT_NEAR(odd.grad_norms[i], wide.grad_norms[i], kHalfTolerance * wide.grad_norms[i]);
    }
    EXPECT_NE(narrow.losses, wide.losses);
  }
}

TEST(LossScaling, AnInfinityIsSeenBeforeItIsClippedByValue) {
  TinyRun run = fp16_run(kFarTooLarge);
  run.set("gradient_clip_value", "0.01");

  EXPECT_THAT(run.train({.ranks = 2}, 2).skipped, ElementsAre(1, 2));
}

TEST(LossScaling, EndsAtTheSmallestScaleWithTheRankBlockAndTensor) {
  const TinyRun run = fp16_run(
      R"({"enabled": true, "initial_scale_power": 40, "hysteresis": 1, "min_loss_scale": 549755813888})");

  EXPECT_THAT(failure(run, {.ranks = 2, .stage = 2}, 5),
              AllOf(HasSubstr("diverged at step 2"),
                    HasSubstr("at the minimum loss scale of 549755813888"),
                    HasSubstr("the gradient of "),
                    HasSubstr("on rank 0"),
                    HasSubstr("bf16")));
  // DeepSpeed's rule for stage 0 never ends; a run that cannot learn any more does.
  EXPECT_THAT(failure(run, {.ranks = 1, .stage = 0}, 20),
              AllOf(HasSubstr("diverged at step 11"), HasSubstr("10 times in a row")));
  EXPECT_THAT(failure(fp16_run(R"({"enabled": true, "loss_scale": 1e12})"), {.ranks = 2}, 20),
              AllOf(HasSubstr("diverged at step 10"), HasSubstr("fixed loss scale, 1e+12")));
}

TEST(LossScaling, ALossThatIsNotFiniteIsNotAnOverflowOfGradients) {
  // Products of such weights are beyond 65504 in the first layer already.
  TinyRun run = fp16_run(R"({"enabled": true})"), wide;
  for (TinyRun* each : {&run, &wide})
    each->set("model.init_std", "100");
  ASSERT_EQ(failure(wide, {.ranks = 2}, 1), "");

  EXPECT_THAT(failure(run, {.ranks = 2}, 1),
              AllOf(HasSubstr("diverged at step 1: the loss of micro-batch 0 on rank 0"),
                    HasSubstr("no loss scale helps")));
}

TEST(LossScaling, ContinuesAtTheSmallestScaleWhereThatIsAskedFor) {
  TinyRun run = fp16_run(
      R"({"enabled": true, "initial_scale_power": 40, "hysteresis": 1, "min_loss_scale": 549755813888})");
  run.set("trainer.on_nonfinite", "\"skip\"");

  EXPECT_EQ(run.train({.ranks = 2, .stage = 2}, 12).skipped.back(), 12);
}

TEST(LossScaling, ResumedItContinuesToTheBit) {
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 2}, other{.ranks = 4, .stage = 3};
  for (
      const char* block :
      {kTooLarge,
       R"({"enabled": true, "initial_scale_power": 26, "scaler": "megatron", "growth_interval": 2})",
       R"({"enabled": true, "initial_scale_power": 26, "scaler": "bmtrain", "loss_scale_steps": 2})"}) {
    SCOPED_TRACE(block);
    const TinyRun run = fp16_run(block);
    const Trace whole = run.train(layout, 9);
    for (const std::int64_t stop : {2, 7}) {
      const files::TempDir saved;
      const Trace before = run.train(layout, stop, saved.path());
      const Trace after = run.train(other, 9, {}, *checkpoint::newest(saved.path()));

      std::vector<double> scales = before.loss_scales;
      scales.insert(scales.end(), after.loss_scales.begin(), after.loss_scales.end());
      EXPECT_EQ(scales, whole.loss_scales);
      EXPECT_EQ(after.skipped.back(), whole.skipped.back());
      EXPECT_EQ(after.digest, whole.digest);
    }
  }
}

TEST(Precision, ARunContinuesInAnother) {
  TinyRun half = fp16_run(R"({"enabled": true})"), brain, full;
  brain.set("bf16.enabled", "true");
  for (const TinyRun* from : {&half, &brain}) {
    const files::TempDir saved;
    const Trace before = from->train({.ranks = 2}, 3, saved.path());
    for (const TinyRun* to : {&half, &brain, &full}) {
      const Trace after = to->train({.ranks = 2}, 5, {}, *checkpoint::newest(saved.path()));

      EXPECT_EQ(after.losses.size(), 2U);
      EXPECT_LT(after.losses.front(), before.losses.front());
      EXPECT_EQ(after.loss_scales.size(), to == &half ? 2U : 0U);
    }
  }
}

/// True if every value of the tensors whose names `of` accepts is representable in bf16.
bool all_bf16(const std::filesystem::path& root, bool states) {
  const checkpoint::Checkpoint opened(*checkpoint::newest(root));
  for (const auto& tensor : opened.tensors()) {
    if (tensor.name.starts_with("optimizer.") != states) continue;
    for (const float value : opened.values(tensor)) {
      if (from_bf16(to_bf16(value)) != value) return false;
    }
  }
  return true;
}

TEST(PureBf16, KeepsWeightsAndOnRequestMomentsInBf16) {
  TinyRun mixed, pure, narrow;
  mixed.set("bf16.enabled", "true");
  pure.set("bf16", R"({"enabled": true, "bf16_master_weights_and_grads": true})");
  narrow.set(
      "bf16",
      R"({"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})");
  const files::TempDir a, b, c;
  static_cast<void>(mixed.train({.ranks = 2}, 3, a.path()));
  static_cast<void>(pure.train({.ranks = 2}, 3, b.path()));
  static_cast<void>(narrow.train({.ranks = 2}, 3, c.path()));

  EXPECT_FALSE(all_bf16(a.path(), false));
  EXPECT_TRUE(all_bf16(b.path(), false));
  EXPECT_FALSE(all_bf16(b.path(), true));
  EXPECT_TRUE(all_bf16(c.path(), false));
  EXPECT_TRUE(all_bf16(c.path(), true));
}

TEST(PureBf16, LearnsAndResumesToTheBitInAnotherStage) {
  TinyRun run;
  run.set(
         "bf16",
         R"({"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})")
      .set("optimizer.params.lr", "1e-2");
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 8);
  const files::TempDir saved;
  static_cast<void>(run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 4, saved.path()));
  const Trace rest = run.train(
      {.ranks = 2, .accumulation = 2, .stage = 3}, 8, {}, *checkpoint::newest(saved.path()));

  EXPECT_LT(whole.losses.back(), whole.losses.front());
  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(PureFp16, LearnsAndResumesToTheBitInAnotherStage) {
  TinyRun run;
  run.set("fp16", R"({"enabled": true, "fp16_master_weights_and_grads": true})")
      .set("optimizer.params.lr", "1e-2");
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 8);
  const files::TempDir saved;
  static_cast<void>(run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 4, saved.path()));
  const Trace rest = run.train(
      {.ranks = 2, .accumulation = 2, .stage = 3}, 8, {}, *checkpoint::newest(saved.path()));

  EXPECT_LT(whole.losses.back(), whole.losses.front());
  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(PureBf16, RulesThatLookAtWholeTensorsAreTheSameInEveryStage) {
  for (const char* type : {"\"Lamb\"", "\"Adafactor\"", "\"Muon\""}) {
    SCOPED_TRACE(type);
    TinyRun run;
    run.set("zero_optimization.stage3_param_persistence_threshold", "0")
        .set("optimizer", std::string(R"({"type": )") + type + "}")
        .set(
            "bf16",
            R"({"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})");
    const Trace reference = run.train({.ranks = 2, .stage = 0}, 2);

    expect_same_bits(reference, run.train({.ranks = 2, .stage = 2}, 2));
    expect_same_bits(reference, run.train({.ranks = 2, .stage = 3}, 2));
  }
}

}  // namespace
}  // namespace tessera::test
