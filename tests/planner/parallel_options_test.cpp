// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/key_dialect.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/rank_product.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string problems_of(const std::string& parallel, int ranks) {
  try {
    make_plan(json::parse(R"({"data": {"train": "a.txt"}, "train_batch_size": 8, "parallel": )" +
                              parallel + "}",
                          "c.json"),
              ranks,
              "c.json");
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(ParallelOptions, ANumberIsShortForItsSize) {
  const json::Value source = config::key_dialect().spell_out(
      json::parse(R"({"parallel": {"pipeline": 2, "tensor": {"size": 3}, "context": 1}})", "c"));

  EXPECT_EQ(source,
            json::parse(R"({"parallel": {"pipeline": {"size": 2}, "tensor": {"size": 3},
                            "context": {"size": 1}}})",
                        "c"));
  EXPECT_EQ(parallel::ranks_per_model(source), 6);
}

TEST(ParallelOptions, OfSizeOneChangesNothing) {
  EXPECT_EQ(problems_of(R"({"pipeline": 1, "tensor": {"size": 1, "mode": "1d"}, "context": 1})", 2),
            "");
  EXPECT_EQ(problems_of(R"({"tensor": {"size": 1, "mode": null}})", 2), "");
}

json::Value spelled(const std::string& text) {
  return config::key_dialect().spell_out(json::parse(text, "c"));
}

TEST(ParallelOptions, DefaultToNoneAndTheSequenceModeIsContext) {
  EXPECT_EQ(spelled(R"({"parallel": {"pipeline": null, "tensor": {"size": 1, "mode": null}}})"),
            json::parse(R"({"parallel": {"tensor": {"size": 1, "mode": null}}})", "c"));
  EXPECT_EQ(spelled(R"({"parallel": {"tensor": {"size": 4, "mode": "sequence"}}})"),
            json::parse(R"({"parallel": {"context": {"size": 4}}})", "c"));
}

Plan plan_with(const std::string& members, int ranks) {
  return make_plan(json::parse(R"({"model": {"num_layers": 4, "hidden_size": 32, "num_heads": 4,
                      "max_positions": 16}, "data": {"train": "a.txt"},
                      "train_micro_batch_size_per_gpu": 1)" +
                                   members + "}",
                               "c.json"),
                   ranks,
                   "c.json");
}

TEST(ParallelOptions, ColossalsConfigIsUnderstood) {
  const Plan plan = plan_with(R"(, "NUM_MICRO_BATCHES": 4, "NUM_CHUNKS": 2,
      "TENSOR_SHAPE": [1, 16, 32],
      "parallel": {"pipeline": 2, "tensor": {"mode": "1d", "size": 2}})",
                              8);

  EXPECT_EQ(plan.mesh().text(), "pp 2 x dp 2 x cp 1 x tp 2");
  EXPECT_EQ(plan.layout().accumulation, 4);
  EXPECT_EQ(plan.layout().stages.chunks, 2);
  EXPECT_EQ(plan.layout().schedule, "interleaved");
  EXPECT_THAT(plan.notes(), testing::Contains(HasSubstr("TENSOR_SHAPE is accepted")));
}

TEST(ParallelOptions, TwoNumbersOfMicroBatchesAreReportedBoth) {
  try {
    plan_with(R"(, "NUM_MICRO_BATCHES": 4, "gradient_accumulation_steps": 2)", 1);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("NUM_MICRO_BATCHES"), HasSubstr("4 and 2")));
  }
}

TEST(ParallelOptions, ANumberOfChunksMayBeInTheModel) {
  const json::Value source = spelled(R"({"model": {"num_chunks": 2, "num_layers": 4}})");

  EXPECT_EQ(source, json::parse(R"({"model": {"num_layers": 4}, "NUM_CHUNKS": 2})", "c"));
}

// The tutorial's configuration, with both layouts and with only a pipeline.
TEST(ParallelOptions, ColossalsTutorialTrainsInFp16) {
  for (const char* tensor : {R"(, "tensor": {"mode": "1d", "size": 2})", ""}) {
    SCOPED_TRACE(tensor);
    const Plan plan = plan_with(R"(, "NUM_MICRO_BATCHES": 192, "NUM_CHUNKS": null,
        "fp16": {"mode": "AMP_TYPE.NAIVE"}, "parallel": {"pipeline": 2)" +
                                    std::string(tensor) + "}",
                                4);

    EXPECT_EQ(plan.layout().stages.stages, 2);
    EXPECT_EQ(plan.layout().grid.size(), *tensor == '\0' ? 1 : 2);
    EXPECT_EQ(plan.layout().accumulation, 192);
    EXPECT_EQ(plan.layout().working, DType::F16);
    EXPECT_TRUE(plan.recipe().scaling.enabled);
    EXPECT_EQ(plan.recipe().scaling.scaler, optim::ScalerKind::Megatron);
    EXPECT_THAT(plan.notes(), testing::Not(testing::Contains(HasSubstr("fp16.mode"))));
  }
}

TEST(ParallelOptions, AModeOfFp16IsItsSwitch) {
  EXPECT_EQ(spelled(R"({"fp16": {"mode": "NAIVE", "initial_scale": 1024}})"),
            json::parse(R"({"fp16": {"initial_scale": 1024, "enabled": true,
                            "scaler": "megatron"}})",
                        "c"));
  EXPECT_EQ(spelled(R"({"fp16": {"mode": "naive", "scaler": "deepspeed"}})"),
            json::parse(R"({"fp16": {"scaler": "deepspeed", "enabled": true}})", "c"));
  EXPECT_EQ(spelled(R"({"fp16": {"mode": "NAIVE", "enabled": false}})"),
            json::parse(R"({"fp16": {"mode": "NAIVE", "enabled": false}})", "c"));
  EXPECT_EQ(plan_with(R"(, "fp16": {"mode": "NAIVE", "enabled": false})", 1).layout().working,
            DType::F32);
}

TEST(ParallelOptions, OtherModesOfFp16AreReportedAndNotForPipelines) {
  const std::string torch = R"(, "fp16": {"mode": "AMP_TYPE.TORCH"})";

  const Plan plan = plan_with(torch, 1);

  EXPECT_EQ(plan.layout().working, DType::F16);
  EXPECT_THAT(plan.notes(), testing::Contains(HasSubstr("fp16.mode is accepted")));
  try {
    plan_with(torch + R"(, "parallel": {"pipeline": 2})", 2);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("fp16.mode: \"AMP_TYPE.TORCH\" does not go with a pipeline of 2"),
                      HasSubstr("AMP_TYPE.NAIVE")));
  }
}

TEST(ParallelOptions, DeepSpeedsBlocksAreUnderstood) {
  const Plan plan = plan_with(R"(, "gradient_accumulation_steps": 4,
      "pipeline": {"stages": 2, "partition": "best", "seed_layers": false},
      "tensor_parallel": {"autotp_size": 2})",
                              4);

  EXPECT_EQ(plan.mesh().text(), "pp 2 x dp 1 x cp 1 x tp 2");
  EXPECT_EQ(plan.layout().partition.as_string(), "parameters");
}

TEST(ParallelOptions, DeepSpeedsBlocksThatSayNothingChangeNothing) {
  const Plan plan = plan_with(R"(, "pipeline": {"stages": "auto"},
      "tensor_parallel": {"autotp_size": 0})",
                              2);

  EXPECT_EQ(plan.mesh().text(), "pp 1 x dp 2 x cp 1 x tp 1");
}

TEST(ParallelOptions, AnIntervalOfDeepSpeedsPipelineRunsEveryBlockAgain) {
  const Plan plan = plan_with(R"(, "gradient_accumulation_steps": 4,
      "pipeline": {"stages": 2, "activation_checkpoint_interval": 2},
      "activation_checkpointing": {"profile": false})",
                              2);

  const std::vector<bool>& again = plan.layout().recompute.blocks;
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(again, std::vector<bool>(again.size(), true));
  EXPECT_THAT(plan.layout().recompute.blocks, testing::Each(true));
  EXPECT_THAT(plan.notes(),
              testing::Not(testing::Contains(HasSubstr("activation_checkpoint_interval"))));
}

TEST(ParallelOptions, AnIntervalSaysNothingWhereItIsZeroOrRecomputationIsSaid) {
  EXPECT_EQ(spelled(R"({"pipeline": {"stages": 2, "activation_checkpoint_interval": 0}})"),
            json::parse(R"({"pipeline": {"stages": 2}})", "c"));

  const Plan plan = plan_with(R"(, "pipeline": {"activation_checkpoint_interval": 1},
      "activation_checkpointing": {"granularity": "selective"})",
                              1);

  EXPECT_TRUE(plan.layout().recompute.regions);
  EXPECT_THAT(plan.layout().recompute.blocks, testing::Each(false));
  EXPECT_THAT(plan.notes(),
              testing::Contains(HasSubstr("pipeline.activation_checkpoint_interval is accepted")));
}

TEST(ParallelOptions, SharesOfFlowsNameTheKeyThatIsMeant) {
  const Plan plan = plan_with(R"(, "pipeline": {"pipe_partitioned": true})", 1);

  EXPECT_THAT(plan.notes(),
              testing::Contains(AllOf(HasSubstr("pipeline.pipe_partitioned"),
                                      HasSubstr("parallel.pipeline.scatter_gather"))));
}

TEST(ParallelOptions, TwoSizesOfOnePipelineAreReportedBoth) {
  try {
    plan_with(R"(, "pipeline": {"stages": 4}, "parallel": {"pipeline": 2})", 4);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("pipeline.stages"), HasSubstr("4 and 2")));
  }
}

TEST(ParallelOptions, SizesThatDoNotDivideTheRanksAreReportedWithTheWholeProduct) {
  EXPECT_THAT(problems_of(R"({"pipeline": 2, "tensor": {"size": 2}})", 6),
              AllOf(HasSubstr("6 ranks"),
                    HasSubstr("pipeline 2 x tensor 2 x context 1 = 4"),
                    HasSubstr("-n 4 or -n 8")));
}

TEST(ParallelOptions, OfAProductAboveAllRanksNoNumberFits) {
  EXPECT_THAT(problems_of(R"({"pipeline": 40, "tensor": {"size": 50}})", 8),
              AllOf(HasSubstr("pipeline 40 x tensor 50 x context 1 = 2000"),
                    HasSubstr("at most 1024 ranks"),
                    Not(HasSubstr("-n 2000"))));
}

/// Problems of a model of 4 layers with 4 heads; in the file, `parallel` is on lines of its own.
std::string all_problems_of(const std::string& parallel, int ranks, const std::string& more = "") {
  try {
    plan_with(more + ", \"parallel\": " + parallel, ranks);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

// No mistake hides another.
TEST(ParallelOptions, AllMistakesOfALayoutAreReportedTogether) {
  EXPECT_THAT(
      all_problems_of(R"({"pipeline": {"size": 9, "schedule": "1f2b", "partition": "unifrom"},
                          "tensor": {"size": 5}, "context": 20, "sequence": true})",
                      7,
                      R"(, "optimizer": {"type": "OneBitLamb"})"),
      AllOf(HasSubstr("7 ranks cannot be divided into pipeline 9 x tensor 5 x context 20 = 900"),
            HasSubstr("-n 900"),
            HasSubstr("did you mean \"1f1b\""),
            HasSubstr("unknown partition \"unifrom\""),
            HasSubstr("9 stages need at least 9 blocks, and the model has 6"),
            HasSubstr("5 ranks cannot share 4 heads"),
            HasSubstr("16 tokens cannot be cut into 40 chunks"),
            HasSubstr("a stage has only its own"),
            HasSubstr("tensor-parallel ranks hold parts")));
  EXPECT_THAT(
      all_problems_of(R"({"pipeline": {"size": 2, "schedule": "interleaved", "chunks": 4,
                                       "scatter_gather": true},
                          "tensor": {"mode": "2d", "size": 5}, "sequence": true,
                          "context": {"size": 3, "mode": "rin"}})",
                      7,
                      R"(, "gradient_accumulation_steps": 1)"),
      AllOf(HasSubstr("pipeline 2 x tensor 5 x context 3 = 30"),
            HasSubstr("2 stages with 4 chunks each need at least 8 blocks, and the model has 6"),
            HasSubstr("1 are fewer than 2"),
            HasSubstr("there is nothing to scatter"),
            HasSubstr("5 ranks are not a square"),
            HasSubstr("mode 2d cuts samples and channels between layers, not tokens"),
            HasSubstr("did you mean \"ring\""),
            HasSubstr("16 tokens cannot be cut into 3 chunks")));
}

TEST(ParallelOptions, ConsequencesOfAMistakeAreNotReported) {
  // The batch of no number of data-parallel ranks, the heads of no grid, chunks of no schedule.
  EXPECT_THAT(all_problems_of(R"({"pipeline": {"size": 2, "schedule": "1f2b", "chunks": 2},
                                  "tensor": {"mode": "2dd", "size": 5, "depth": 3}})",
                              7),
              AllOf(HasSubstr("3 problems"),
                    HasSubstr("= 10"),
                    HasSubstr("\"1f1b\""),
                    HasSubstr("parallel.tensor.mode: unknown value")));
  // Sizes that could not be read multiply to nothing.
  EXPECT_THAT(
      all_problems_of(
          R"({"pipeline": {"size": "two", "scatter_gather": true}, "tensor": 2, "context": 2})", 7),
      AllOf(HasSubstr("parallel.pipeline.size: expected an integer"),
            Not(HasSubstr("problems in")),
            Not(HasSubstr("cannot be divided"))));
  // Nor are layers and heads of an unknown model checked.
  EXPECT_THAT(problems_of(R"({"pipeline": 40, "tensor": 5}, "model": {"preset": "nanno"})", 200),
              AllOf(HasSubstr("model.preset: unknown value"), Not(HasSubstr("problems in"))));
  // With a wrong product, a missing batch size is still reported.
  try {
    make_plan(json::parse(R"({"data": {"train": "a.txt"}, "parallel": {"tensor": 2}})", "c.json"),
              3,
              "c.json");
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.text(),
        AllOf(HasSubstr("the batch size is missing"), HasSubstr("3 ranks cannot be divided")));
  }
}

TEST(ParallelOptions, AnUnknownScheduleOrModeIsReportedWithTheNearestName) {
  EXPECT_THAT(problems_of(R"({"pipeline": {"size": 2, "schedule": "1f1"}})", 2),
              AllOf(HasSubstr("parallel.pipeline.schedule"), HasSubstr("1f1b")));
  EXPECT_THAT(problems_of(R"({"tensor": {"size": 2, "mode": "1dd"}})", 2),
              AllOf(HasSubstr("parallel.tensor.mode"), HasSubstr("1d")));
}

}  // namespace
}  // namespace tessera::planner
