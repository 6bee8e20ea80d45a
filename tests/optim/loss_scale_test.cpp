// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Block {
  Fp16Options options;
  config::Problems problems;
  std::vector<std::string> notes;
};

Block block(const std::string& text, int zero_stage = 1) {
  Block out;
  config::Origins origins;
  config::read(json::parse(text, "config.json"), out.options, out.problems, origins);
  check_fp16(out.options, zero_stage, "fp16", out.problems, origins, out.notes);
  return out;
}

LossScaler scaler(const std::string& text, int zero_stage = 1) {
  const Block read = block(text, zero_stage);
  EXPECT_THAT(read.problems.list(), IsEmpty());
  return {read.options, zero_stage};
}

/// The scale after each step; 'o' overflows, '.' does not.
std::vector<double> scales(LossScaler& scaler, const std::string& steps) {
  std::vector<double> out;
  for (const char step : steps) {
    scaler.update(step == 'o');
    out.push_back(scaler.scale());
  }
  return out;
}

TEST(LossScaler, AStaticScaleStays) {
  LossScaler fixed = scaler(R"({"enabled": true, "loss_scale": 128})");

  EXPECT_FALSE(fixed.dynamic());
  EXPECT_THAT(scales(fixed, ".o.o"), ElementsAre(128, 128, 128, 128));
}

TEST(LossScaler, DeepSpeedEndsTheRunAtTheSmallestScale) {
  LossScaler dynamic = scaler(
      R"({"enabled": true, "initial_scale": 4, "min_loss_scale": 2, "hysteresis": 1,
          "loss_scale_window": 2})");
  EXPECT_THAT(scales(dynamic, "o"), ElementsAre(2));

  try {
    dynamic.update(true);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), HasSubstr("minimum loss scale of 2"));
    EXPECT_THAT(error.fix(), HasSubstr("bf16"));
  }

  // A caller that catches the error continues as after any overflow.
  EXPECT_THAT(scales(dynamic, "..."), ElementsAre(2, 4, 4));
}

TEST(LossScaler, DeepSpeedsStageZeroNeitherWaitsNorEnds) {
  LossScaler dynamic = scaler(
      R"({"enabled": true, "initial_scale": 4, "hysteresis": 3, "loss_scale_window": 2})", 0);

  EXPECT_THAT(scales(dynamic, "ooo...."), ElementsAre(2, 1, 1, 1, 1, 2, 2));
}

constexpr const char* kMegatron =
    R"({"enabled": true, "scaler": "megatron", "initial_scale": 16, "growth_interval": 3})";

TEST(LossScaler, MegatronWaitsForItsHysteresisAndThenLowersAtEveryOverflow) {
  LossScaler dynamic = scaler(kMegatron);

  EXPECT_THAT(scales(dynamic, "o.oo...oo"), ElementsAre(16, 16, 8, 4, 4, 4, 8, 8, 4));
}

TEST(LossScaler, MegatronCountsCleanStepsInARow) {
  LossScaler dynamic = scaler(kMegatron);

  EXPECT_THAT(scales(dynamic, "..o..."), ElementsAre(16, 16, 16, 16, 16, 32));
}

TEST(LossScaler, MegatronStaysWithinItsBounds) {
  LossScaler up = scaler(
      R"({"enabled": true, "scaler": "megatron", "initial_scale": 16, "growth_interval": 1,
          "max_scale": 24})");
  LossScaler down = scaler(
      R"({"enabled": true, "scaler": "megatron", "initial_scale": 2, "hysteresis": 1,
          "min_scale": 1.5})");

  EXPECT_THAT(scales(up, ".."), ElementsAre(24, 24));
  EXPECT_THAT(scales(down, "oo"), ElementsAre(1.5, 1.5));
}

TEST(LossScaler, BMTrainLowersAtOnceAndCountsFromTheLastChange) {
  LossScaler dynamic = scaler(
      R"({"enabled": true, "scaler": "bmtrain", "initial_scale": 8, "loss_scale_steps": 3})");

  EXPECT_THAT(scales(dynamic, "o.....o.."), ElementsAre(4, 4, 4, 8, 8, 8, 4, 4, 4));
}

TEST(LossScaler, BMTrainsCountOutlivesAnOverflowThatChangesNothing) {
  LossScaler dynamic = scaler(
      R"({"enabled": true, "scaler": "bmtrain", "initial_scale": 1, "loss_scale_steps": 3})");

  EXPECT_THAT(scales(dynamic, "..o."), ElementsAre(1, 1, 1, 2));
}

TEST(LossScaler, BMTrainsBoundsStopItButDoNotClamp) {
  LossScaler dynamic = scaler(
      R"({"enabled": true, "scaler": "bmtrain", "initial_scale": 9, "loss_scale_steps": 1,
          "min_loss_scale": 5, "max_loss_scale": 12})");

  EXPECT_THAT(scales(dynamic, "..oooo"), ElementsAre(18, 18, 9, 4.5, 4.5, 4.5));
}

TEST(LossScaler, StartsAtTwoToTheSixteenth) {
  for (const char* name : {"deepspeed", "megatron", "bmtrain"}) {
    EXPECT_EQ(scaler("{\"enabled\": true, \"scaler\": \"" + std::string(name) + "\"}").scale(),
              65536.0);
  }
  EXPECT_EQ(scaler(R"({"enabled": true, "initial_scale_power": 3})").scale(), 8.0);
}

// Factors whose powers are not short decimals.
constexpr const char* kBlocks[] = {
    R"({"enabled": true, "loss_scale_factor": 1.7, "loss_scale_window": 4, "hysteresis": 3})",
    R"({"enabled": true, "loss_scale_factor": 1.7, "loss_scale_window": 4, "hysteresis": 2,
        "consecutive_hysteresis": true})",
    R"({"enabled": true, "scaler": "megatron", "growth_factor": 1.7, "backoff_factor": 0.3,
        "growth_interval": 4})",
    R"({"enabled": true, "scaler": "bmtrain", "loss_scale_factor": 1.7, "loss_scale_steps": 4})",
    R"({"enabled": true, "loss_scale": 100})"};

TEST(LossScaler, ContinuesExactlyAfterEveryStep) {
  const std::string steps = "..o....o.oo.....oo.......oo.o..........";
  for (const char* text : kBlocks) {
    for (const int stage : {0, 1}) {
      LossScaler whole = scaler(text, stage);
      const std::vector<double> expected = scales(whole, steps);
      for (std::size_t cut = 0; cut < steps.size(); ++cut) {
        LossScaler before = scaler(text, stage), after = scaler(text, stage);
        scales(before, steps.substr(0, cut));

        after.restore(json::parse_strict(before.state().dump(), "state"));

        EXPECT_EQ(scales(after, steps.substr(cut)),
                  std::vector<double>(expected.begin() + static_cast<long>(cut), expected.end()))
            << text << " at stage " << stage << ", cut at " << cut;
        EXPECT_EQ(after.state(), whole.state());
      }
    }
  }
}

TEST(LossScaler, TakesOnlyTheScaleOfAnotherScaler) {
  LossScaler megatron = scaler(kMegatron), deepspeed = scaler(kBlocks[0]);
  scales(megatron, "oo.");

  deepspeed.restore(megatron.state());

  LossScaler fresh = scaler(kBlocks[0]);
  json::Value expected = fresh.state();
  expected["scale"] = json::Value::number(8);
  EXPECT_EQ(deepspeed.state(), expected);
}

TEST(LossScaler, RefusesAnInvalidState) {
  for (const char* text : {"{}",
                           R"({"scaler": "deepspeed"})",
                           R"({"scaler": "deepspeed", "scale": -1})",
                           R"({"scaler": "deepspeed", "scale": 2, "iteration": 0.5})"}) {
    LossScaler dynamic = scaler(kBlocks[0]);
    try {
      dynamic.restore(json::parse_strict(text, "state"));
      FAIL() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Format);
    }
  }
}

TEST(Fp16Block, TakesDeepSpeedsKeysWithoutAWord) {
  const Block whole = block(R"({"enabled": true, "auto_cast": false, "loss_scale": 0,
      "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
      "consecutive_hysteresis": false, "min_loss_scale": 1,
      "fp16_master_weights_and_grads": false})");

  EXPECT_THAT(whole.problems.list(), IsEmpty());
  EXPECT_THAT(whole.notes, IsEmpty());
}

TEST(Fp16Block, CompletedItGivesTheSameScaler) {
  for (const char* text : kBlocks) {
    for (const int stage : {0, 1}) {
      Fp16Options completed = block(text, stage).options.completed(stage);
      const std::string again = config::write(completed).dump();

      const Block reread = block(again, stage);

      EXPECT_THAT(reread.problems.list(), IsEmpty()) << again;
      EXPECT_EQ(reread.notes, block(text, stage).notes) << again;
      LossScaler first(block(text, stage).options, stage), second(reread.options, stage);
      const std::string steps = "..oo....oo......o..";
      EXPECT_EQ(scales(first, steps), scales(second, steps)) << again;
    }
  }
}

TEST(Fp16Block, KeysOfAnotherScalerAreProblems) {
  const Block read = block(R"({"enabled": true, "scaler": "megatron", "loss_scale_window": 100,
                               "max_loss_scale": 3})");

  ASSERT_EQ(read.problems.list().size(), 2U);
  EXPECT_EQ(read.problems.list()[0].path, "fp16.loss_scale_window");
  EXPECT_THAT(read.problems.list()[0].fix, HasSubstr("deepspeed"));
  EXPECT_EQ(read.problems.list()[1].path, "fp16.max_loss_scale");
  EXPECT_THAT(read.problems.list()[1].fix, HasSubstr("bmtrain"));
}

TEST(Fp16Block, ContradictionsAndWhatIsNotBuiltAreProblems) {
  const auto paths = [](const std::string& text) {
    const Block read = block(text);
    std::vector<std::string> out;
    for (const auto& problem : read.problems.list())
      out.push_back(problem.path);
    return out;
  };

  EXPECT_THAT(paths(R"({"enabled": true, "initial_scale": 8, "initial_scale_power": 3})"),
              ElementsAre("fp16.initial_scale"));
  EXPECT_THAT(paths(R"({"enabled": true, "initial_scale_power": 3, "min_loss_scale": 16})"),
              ElementsAre("fp16.initial_scale_power"));
  EXPECT_THAT(
      paths(R"({"enabled": true, "scaler": "megatron", "initial_scale": 8, "max_scale": 4})"),
      ElementsAre("fp16.initial_scale"));
  EXPECT_THAT(paths(R"({"enabled": true, "scaler": "megatron", "backoff_factor": 1})"),
              ElementsAre("fp16.backoff_factor"));
  EXPECT_THAT(paths(R"({"enabled": true, "fp16_master_weights_and_grads": true})"), IsEmpty());
}

TEST(Fp16Block, WhatChangesNothingIsNoted) {
  EXPECT_THAT(block(R"({"enabled": true, "hysteresis": 4})", 0).notes,
              ElementsAre(HasSubstr("fp16.hysteresis has no effect")));
  EXPECT_THAT(block(R"({"enabled": true, "loss_scale": 8, "loss_scale_window": 4})").notes,
              ElementsAre(HasSubstr("fp16.loss_scale_window has no effect")));
  EXPECT_THAT(block(R"({"enabled": true, "auto_cast": true})").notes,
              Contains(HasSubstr("fp16.auto_cast")));
}

}  // namespace
}  // namespace tessera::optim
