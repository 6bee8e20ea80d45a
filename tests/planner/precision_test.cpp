// SPDX-License-Identifier: Apache-2.0
// The precision that fp16, bf16, amp and torch_autocast resolve to.
#include "tessera/planner/precision.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Plan plan_of(const std::string& members, int ranks = 1) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64},
          "train_batch_size": 4, )" +
      members + "}";
  return make_plan(json::parse(text, "c.json"), ranks, "my.json");
}

std::string refusal(const std::string& members) {
  try {
    plan_of(members);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.text();
  }
  return "";
}

optim::LossScaler scaler_of(const Plan& plan) {
  return {plan.recipe().scaling, plan.recipe().scaling_stage};
}

TEST(Fp16, HasDeepSpeedsDynamicScaleAndFp32Masters) {
  const Plan plan = plan_of(R"("fp16": {"enabled": true, "initial_scale_power": 12})");

  EXPECT_EQ(plan.layout().working, DType::F16);
  EXPECT_EQ(plan.layout().kept.masters, DType::F32);
  EXPECT_EQ(plan.layout().sums, DType::F32);
  EXPECT_EQ(scaler_of(plan).scale(), 4096.0);
  EXPECT_EQ(precision_text(plan.layout(), plan.recipe()),
            "fp16 with fp32 masters, loss scale 4096 (dynamic)");
  EXPECT_THAT(plan.notes(), Not(Contains(HasSubstr("fp16"))));
}

TEST(Fp16, ResolvedShowsWhatTheScalerReadsAndResolvesToTheSameAgain) {
  for (const char* block :
       {R"("fp16": {"enabled": true})",
        R"("fp16": {"enabled": true, "scaler": "megatron", "max_scale": 1048576})",
        R"("fp16": {"enabled": true, "scaler": "bmtrain"}, "zero_optimization": {"stage": 0})",
        R"("fp16": {"enabled": true, "loss_scale": 128})"}) {
    SCOPED_TRACE(block);
    const Plan first = plan_of(block);

    const Plan again = make_plan(first.resolved(), 1, "my.json");

    EXPECT_EQ(first.resolved(), again.resolved());
    EXPECT_EQ(scaler_of(first).state(), scaler_of(again).state());
  }
  const Plan plan = plan_of(R"("fp16": {"enabled": true})");
  const json::Value& resolved = plan.resolved();
  EXPECT_EQ(resolved.find("fp16")->find("loss_scale_window")->as_integer(), 1000);
}

TEST(Fp16, FollowsTheSameRuleOnOneRankAndOnTwoUnlessStageZeroIsAskedFor) {
  const std::string on = R"("fp16": {"enabled": true, "hysteresis": 2})";
  const auto after_one_overflow = [](const Plan& plan) {
    optim::LossScaler scaler = scaler_of(plan);
    scaler.update(true);
    return scaler.scale();
  };

  EXPECT_EQ(after_one_overflow(plan_of(on, 1)), 65536.0);
  EXPECT_EQ(after_one_overflow(plan_of(on, 2)), 65536.0);
  const Plan zero = plan_of(on + R"(, "zero_optimization": {"stage": 0})", 2);
  EXPECT_EQ(after_one_overflow(zero), 32768.0);
  EXPECT_THAT(zero.notes(), Contains(HasSubstr("fp16.hysteresis has no effect")));
}

TEST(Fp16, ProblemsHaveTheirPlaces) {
  EXPECT_THAT(
      refusal(R"("fp16": {"enabled": true, "growth_interval": 5})"),
      AllOf(HasSubstr("c.json:2:"), HasSubstr("fp16.growth_interval"), HasSubstr("megatron")));
  EXPECT_THAT(refusal(R"("fp16": {"enabled": true, "loss_scale": -1})"),
              HasSubstr("fp16.loss_scale"));
}

TEST(Fp16, WarnsOfWeightsThatWereMadeInBf16) {
  const files::TempDir folder;
  files::write_atomic(
      folder.path() / "config.json",
      R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 64,
          "vocab_size": 50257, "torch_dtype": "bfloat16"})");
  const auto notes = [&](const std::string& block) {
    const json::Value source =
        json::parse(R"({"model": {"from": ")" + folder.path().string() +
                        R"("}, "tokenizer": {"type": "gpt2"}, "data": {"train": "a.txt"},
                "train_batch_size": 4, )" +
                        block + "}",
                    "c.json");
    return make_draft(source, 1, "my.json").notes;
  };

  EXPECT_THAT(notes(R"("fp16": {"enabled": true})"), Contains(HasSubstr("were made in bf16")));
  EXPECT_THAT(notes(R"("bf16": {"enabled": true})"), Not(Contains(HasSubstr("made in bf16"))));
}

TEST(Amp, LevelsComeToWhatIsNearest) {
  EXPECT_EQ(plan_of(R"("amp": {"enabled": true, "opt_level": "O0"})").layout().working, DType::F32);
  for (const char* level : {"O1", "O2", "O3"}) {
    SCOPED_TRACE(level);
    const Plan plan =
        plan_of(R"("amp": {"enabled": true, "opt_level": ")" + std::string(level) + "\"}");

    EXPECT_EQ(plan.layout().working, DType::F16);
    EXPECT_EQ(plan.layout().kept.masters, DType::F32);
    EXPECT_EQ(scaler_of(plan).scale(), std::string(level) == "O3" ? 1.0 : 65536.0);
    EXPECT_EQ(scaler_of(plan).dynamic(), std::string(level) != "O3");
    EXPECT_THAT(plan.notes(), Contains(HasSubstr("amp.opt_level " + std::string(level))));
    EXPECT_EQ(make_plan(plan.resolved(), 1, "my.json").layout().working, DType::F16);
  }
}

// Apex: halved at every overflow, doubled after 2000 clean steps, never beyond 2^24.
TEST(Amp, ScalesAsApexDoes) {
  optim::LossScaler scaler = scaler_of(plan_of(R"("amp": {"enabled": true})"));
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32768.0);
  for (int step = 0; step < 2000; ++step)
    scaler.update(false);
  EXPECT_EQ(scaler.scale(), 65536.0);
  for (int step = 0; step < 2000 * 12; ++step)
    scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p24);

  const Plan fixed = plan_of(R"("amp": {"enabled": true, "loss_scale": 128})");
  EXPECT_EQ(scaler_of(fixed).scale(), 128.0);
  EXPECT_FALSE(scaler_of(fixed).dynamic());
}

TEST(Amp, WrongWordsAreRefused) {
  EXPECT_THAT(refusal(R"("amp": {"enabled": true, "opt_level": "O4"})"),
              AllOf(HasSubstr("amp.opt_level"), HasSubstr("\"O0\"")));
  EXPECT_THAT(refusal(R"("amp": {"enabled": true, "loss_scale": "fast"})"),
              AllOf(HasSubstr("amp.loss_scale"), HasSubstr("\"dynamic\"")));
}

TEST(TorchAutocast, IsTheBlockOfItsType) {
  const Plan brain = plan_of(R"("torch_autocast": {"enabled": true})");
  const Plan half = plan_of(R"("torch_autocast": {"enabled": true, "dtype": "float16"})");

  EXPECT_EQ(brain.layout().working, DType::BF16);
  EXPECT_EQ(half.layout().working, DType::F16);
  EXPECT_EQ(scaler_of(half).scale(), 65536.0);
  EXPECT_THAT(brain.notes(), Contains(HasSubstr("torch_autocast: as bf16.enabled")));
}

TEST(PureBf16, KeepsNoFp32MastersAndSumsInBf16UnlessConfiguredOtherwise) {
  const Plan pure = plan_of(R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})");
  EXPECT_EQ(pure.layout().kept.masters, DType::BF16);
  EXPECT_EQ(pure.layout().kept.states, DType::F32);
  EXPECT_EQ(pure.layout().sums, DType::BF16);
  EXPECT_EQ(precision_text(pure.layout(), pure.recipe()), "bf16 without fp32 masters");

  const Plan wide = plan_of(
      R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                  "bf16_optimizer_states": true},
         "data_types": {"grad_accum_dtype": "fp32"})");
  EXPECT_EQ(wide.layout().kept.states, DType::BF16);
  EXPECT_EQ(wide.layout().sums, DType::F32);

  const Plan off = plan_of(R"("bf16": {"enabled": false, "bf16_master_weights_and_grads": true})");
  EXPECT_EQ(off.layout().kept.masters, DType::F32);
  EXPECT_EQ(off.layout().sums, DType::F32);
  EXPECT_THAT(refusal(R"("bf16": {"enabled": true, "bf16_optimizer_states": true})"),
              HasSubstr("needs bf16.bf16_master_weights_and_grads"));
}

TEST(PureFp16, KeepsNoFp32MastersAndSumsInFp32) {
  const Plan pure = plan_of(R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})");
  EXPECT_EQ(pure.layout().kept.masters, DType::F16);
  EXPECT_EQ(pure.layout().kept.states, DType::F32);
  EXPECT_EQ(pure.layout().sums, DType::F32);
  EXPECT_THAT(precision_text(pure.layout(), pure.recipe()), HasSubstr("fp16 without fp32 masters"));
  EXPECT_THAT(pure.notes(), Contains(HasSubstr("gradients are summed in fp32")));

  const Plan off = plan_of(R"("fp16": {"enabled": false, "fp16_master_weights_and_grads": true})");
  EXPECT_EQ(off.layout().kept.masters, DType::F32);
}

}  // namespace
}  // namespace tessera::planner
