// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/promise.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::engine {
namespace {

using testing::HasSubstr;

planner::Plan plan_of(const std::string& members, int ranks) {
  return planner::make_plan(
      json::parse(R"({"model": {"num_layers": 3, "hidden_size": 32, "num_heads": 4,
                      "max_positions": 16}, "data": {"train": "a.txt"},
                      "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2)" +
                      members + "}",
                  "c.json"),
      ranks,
      "c.json");
}

TEST(Promises, ZeroAndPipelinesGiveTheSameBits) {
  EXPECT_TRUE(promise_of(plan_of("", 1)).bits);
  EXPECT_TRUE(promise_of(plan_of(R"(, "zero_optimization": {"stage": 3})", 4)).bits);
  EXPECT_TRUE(
      promise_of(plan_of(R"(, "parallel": {"pipeline": 2}, "bf16": {"enabled": true})", 4)).bits);
  EXPECT_EQ(promise_of(plan_of("", 2)).why, "");
}

TEST(Promises, SharedLayersStayWithinRounding) {
  const Promise fp32 = promise_of(plan_of(R"(, "parallel": {"tensor": 2})", 4));
  const Promise bf16 =
      promise_of(plan_of(R"(, "parallel": {"tensor": 2}, "bf16": {"enabled": true})", 4));

  EXPECT_FALSE(fp32.bits);
  EXPECT_EQ(fp32.gradient, 2e-6);
  EXPECT_EQ(fp32.loss, 2e-5);
  EXPECT_THAT(fp32.why, HasSubstr("share a layer"));
  EXPECT_FALSE(bf16.bits);
  EXPECT_DOUBLE_EQ(bf16.gradient, 2e-2 * std::sqrt(3.0 / 12));
  EXPECT_EQ(bf16.loss, 2e-3);
}

TEST(Promises, SharedTokensStayWithinRounding) {
  const Promise promise = promise_of(plan_of(R"(, "parallel": {"context": 2})", 2));

  EXPECT_FALSE(promise.bits);
  EXPECT_EQ(promise.gradient, 2e-6);
  EXPECT_THAT(promise.why, HasSubstr("share tokens"));
}

TEST(Promises, SumsThatAreMadeElsewhereStayWithinRounding) {
  EXPECT_FALSE(promise_of(plan_of(R"(, "gradient_reduction": "once")", 2)).bits);
  // There are no other ranks to sum for.
  EXPECT_TRUE(promise_of(plan_of(R"(, "gradient_reduction": "once")", 1)).bits);
}

TEST(Promises, GradientsThatTravelIn16BitsHaveTheirBound) {
  const std::string narrow = R"(, "communication_data_type": "bf16")";

  EXPECT_DOUBLE_EQ(promise_of(plan_of(narrow + R"(, "parallel": {"tensor": 2})", 2)).gradient,
                   2e-2 * std::sqrt(3.0 / 12));
  EXPECT_TRUE(promise_of(plan_of(narrow, 2)).bits);
}

TEST(Promises, CompressedGradientsPromiseNothing) {
  const std::string optimizer = R"(, "optimizer": {"type": "OneBitAdam"})";

  EXPECT_THROW(promise_of(plan_of(optimizer, 2)), Error);
  EXPECT_TRUE(promise_of(plan_of(optimizer, 1)).bits);
}

TEST(OnOneRank, TheSameMicroBatchesMakeTheSameGlobalBatch) {
  const planner::Plan spread =
      plan_of(R"(, "parallel": {"pipeline": 2, "tensor": 2}, "zero_optimization":
      {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0})",
              8);

  const planner::Plan one = planner::make_plan(on_one_rank(spread), 1, "c.json");

  EXPECT_EQ(one.recipe().global_batch, spread.recipe().global_batch);
  EXPECT_EQ(one.layout().micro_batch, 2);
  EXPECT_EQ(one.layout().accumulation, 4);
  EXPECT_EQ(one.layout().zero_stage, 0);
  EXPECT_EQ(one.mesh().text(), "pp 1 x dp 1 x cp 1 x tp 1");
  EXPECT_EQ(one.model().resolved.num_parameters, spread.model().resolved.num_parameters);
}

// DeepSpeed's scaler follows another rule in stage 0.
TEST(OnOneRank, TheLossScaleFollowsTheSameRule) {
  for (const char* stage : {"0", "2"}) {
    const planner::Plan spread = plan_of(std::string(R"(, "fp16": {"enabled": true},
        "zero_optimization": {"stage": )") + stage +
                                             "}",
                                         2);

    const planner::Plan one = planner::make_plan(on_one_rank(spread), 1, "c.json");

    EXPECT_EQ(one.recipe().scaling_stage > 0, spread.recipe().scaling_stage > 0) << stage;
  }
}

// A stage that was chosen from the number of ranks doesn't count as given: amp allows no given
// stage other than its own.
TEST(OnOneRank, AnUnwrittenStageStaysUnwritten) {
  for (const char* precision :
       {R"(, "amp": {"enabled": true})", R"(, "fp16": {"enabled": true})"}) {
    const planner::Plan spread = plan_of(precision, 2);

    const planner::Plan one = planner::make_plan(on_one_rank(spread), 1, "c.json");
    const planner::Plan kept = planner::make_plan(keeping_gradient(spread.resolved()), 2, "c.json");
    const planner::Plan one_kept =
        planner::make_plan(keeping_gradient(on_one_rank(spread)), 1, "c.json");

    EXPECT_EQ(one.recipe().scaling_stage, spread.recipe().scaling_stage);
    EXPECT_EQ(kept.recipe().scaling_stage, spread.recipe().scaling_stage);
    EXPECT_EQ(one_kept.recipe().scaling_stage, spread.recipe().scaling_stage);
    EXPECT_EQ(kept.layout().zero_stage, spread.layout().zero_stage);
  }
}

TEST(OnOneRank, OnceIsEachWhereNoRankSumsSeveralFirst) {
  const std::string once = R"(, "gradient_reduction": "once", "gradient_accumulation_steps": )";
  const auto reduction = [&](const std::string& micros, const std::string& stage) {
    const planner::Plan spread = planner::make_plan(
        json::parse(R"({"model": {"num_layers": 1, "hidden_size": 32, "num_heads": 4,
                      "max_positions": 16}, "data": {"train": "a.txt"},
                      "train_micro_batch_size_per_gpu": 2)" +
                        once + micros + R"(, "zero_optimization": {"stage": )" + stage + "}}",
                    "c.json"),
        2,
        "c.json");
    return planner::make_plan(on_one_rank(spread), 1, "c.json").layout().reduction;
  };

  EXPECT_EQ(reduction("1", "0"), parallel::Reduction::Each);
  EXPECT_EQ(reduction("2", "2"), parallel::Reduction::Each);
  EXPECT_EQ(reduction("2", "0"), parallel::Reduction::Once);
}

// Optimizers that exchange signs keep gradients apart, and refuse "each".
TEST(OnOneRank, OnceStaysWhereTheOptimizerWantsIt) {
  const planner::Plan spread = plan_of(
      R"(, "gradient_reduction": "once", "optimizer": {"type": "OneBitAdam"}, "parallel": {"pipeline": 2})",
      2);

  EXPECT_EQ(planner::make_plan(on_one_rank(spread), 1, "c.json").layout().reduction,
            parallel::Reduction::Once);
}

TEST(KeepingGradient, LeavesWhatTheGradientDependsOn) {
  const planner::Plan plan = plan_of(R"(, "gradient_clipping": 0.5, "optimizer": {"type": "Lamb",
      "params": {"lr": 1e-2}, "groups": [{"pattern": "wte", "frozen": true},
      {"pattern": "bias", "lr": 1e-4, "weight_decay": 0.1}]},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}})",
                                     2);

  const planner::Plan keeping = planner::make_plan(keeping_gradient(plan.resolved()), 2, "c.json");

  EXPECT_EQ(keeping.recipe().optimizer.type, "SGD");
  EXPECT_EQ(keeping.recipe().clip_norm, 0);
  EXPECT_EQ(keeping.recipe().global_batch, plan.recipe().global_batch);
  EXPECT_EQ(keeping.layout().zero_stage, plan.layout().zero_stage);
  ASSERT_EQ(keeping.model().groups.size(), 2U);
  EXPECT_TRUE(keeping.model().groups[0].frozen);
  EXPECT_FALSE(keeping.model().groups[1].lr.has_value());
}

TEST(Promises, ErrorFeedbackHasTheBoundOfNarrowGradients) {
  const std::string keys = R"(, "communication_data_type": "int8",
      "zero_optimization": {"stage": 1, "zeropp_loco_param": {"err_beta": 0.8}})";

  const Promise promise = promise_of(plan_of(keys, 2));
  EXPECT_FALSE(promise.bits);
  EXPECT_THAT(promise.why, HasSubstr("what its gradients lost in 8 bits"));
  EXPECT_TRUE(promise_of(plan_of(keys, 1)).bits);
}

}  // namespace
}  // namespace tessera::engine
