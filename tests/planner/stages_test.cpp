// SPDX-License-Identifier: Apache-2.0
// Which stage has which blocks, and what is refused before any rank starts.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/placement.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/report/first_table.h"
#include "tessera/report/stage_lines.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

/// Four layers: with embedding and head six blocks.
Plan plan_of(const std::string& pipeline, int ranks, const std::string& more = "") {
  return make_plan(json::parse(R"({"model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4},
                      "data": {"train": "a.txt", "sequence_length": 32},
                      "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
                      "parallel": {"pipeline": )" +
                                   pipeline + "}" + more + "}",
                               "c.json"),
                   ranks,
                   "c.json");
}

std::string refusal(const std::string& pipeline, int ranks, const std::string& more = "") {
  try {
    (void)plan_of(pipeline, ranks, more);
  } catch (const Error& error) {
    return error.text();
  }
  return "taken";
}

std::vector<int> bounds(const std::string& partition) {
  return plan_of(R"({"size": 2, "partition": )" + partition + "}", 2).layout().stages.bounds;
}

TEST(Stages, AreMadeAsThePartitionSays) {
  EXPECT_EQ(bounds("\"uniform\""), (std::vector<int>{0, 3, 6}));
  EXPECT_EQ(bounds("[0, 5, 6]"), (std::vector<int>{0, 5, 6}));
  EXPECT_EQ(bounds("\"type:^H\""), (std::vector<int>{0, 3, 6}));
  // Tables of 4096 tokens are five layers each.
  const Plan wide =
      make_plan(json::parse(R"({"model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4,
                                "vocab_size": 4096, "tie_embeddings": false},
                      "data": {"train": "a.txt", "sequence_length": 32}, "train_batch_size": 4,
                      "parallel": {"pipeline": {"size": 3, "partition": "parameters"}}})",
                            "c.json"),
                3,
                "c.json");
  EXPECT_EQ(wide.layout().stages.bounds, (std::vector<int>{0, 1, 5, 6}));
}

TEST(Stages, AreBalancedByTheWorkOfTheirBlocks) {
  const Plan plan = plan_of("2", 2);
  const std::vector<double> work =
      parallel::predicted_work(plan.model().resolved.model, plan.data().sequence_length);

  // 12 C^2 multiplications by weights and T C by keys and values a layer, V C in the head.
  const double layer = 12.0 * 64 * 64 + 32 * 64;
  EXPECT_THAT(work, testing::ElementsAre(0, layer, layer, layer, layer, 256.0 * 64));
  EXPECT_EQ(plan.layout().stages.bounds, (std::vector<int>{0, 3, 6}));
}

/// Six blocks on four stages: the odd ones go to the first stages, or to the last.
TEST(Stages, HoldOddBlocksWhereThePartitionSays) {
  EXPECT_EQ(plan_of(R"({"size": 4, "partition": "uniform"})", 4).layout().stages.bounds,
            (std::vector<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(plan_of(R"({"size": 4, "partition": "uniform-last"})", 4).layout().stages.bounds,
            (std::vector<int>{0, 1, 2, 4, 6}));
  EXPECT_EQ(
      plan_of(R"({"size": 2, "chunks": 2, "partition": "uniform-last"})", 2).layout().stages.bounds,
      (std::vector<int>{0, 1, 3, 4, 6}));
}

TEST(Stages, OfNoPartitionAreRefusedEvenWhereThereIsOne) {
  for (const char* size : {"1", "2"}) {
    for (const char* partition : {R"({"a": 1})", "3", "true"}) {
      EXPECT_THAT(
          refusal(R"({"size": )" + std::string(size) + R"(, "partition": )" + partition + "}", 2),
          AllOf(HasSubstr("parallel.pipeline.partition: expected a string or a list"),
                HasSubstr("fix: write \"balanced\"")));
    }
  }
}

TEST(Stages, HoldSeveralChunksOfTheModelWhereTheScheduleAsks) {
  const Plan plan = plan_of(R"({"size": 2, "schedule": "zb-v", "partition": [0, 2, 3, 4, 6]})", 2);

  EXPECT_EQ(plan.layout().stages.chunks, 2);
  EXPECT_EQ(plan.layout().stages.blocks(0, 0, 6), (std::pair{0, 2}));
  EXPECT_EQ(plan.layout().stages.blocks(0, 1, 6), (std::pair{4, 6}));
  EXPECT_EQ(plan.layout().stages.blocks(1, 0, 6), (std::pair{2, 3}));
  EXPECT_EQ(plan.layout().stages.blocks(1, 1, 6), (std::pair{3, 4}));
  EXPECT_EQ(plan.mesh().text(), "pp 2 x dp 1 x cp 1 x tp 1");
}

TEST(Stages, OfSeveralChunksAreInterleavedUnlessConfiguredOtherwise) {
  EXPECT_EQ(plan_of(R"({"size": 2, "chunks": 3})", 2).layout().schedule, "interleaved");
}

TEST(Stages, AreInTheFirstTable) {
  const Plan plan = plan_of(R"({"size": 2, "partition": "uniform"})", 4);
  const std::vector<std::string> table = report::first_table(PlanWithData(plan, {}), {});

  // Of 5 passes of a stage's time it works in 4: (P - 1) / (m + P - 1), as ranks.json has it.
  EXPECT_DOUBLE_EQ(report::planned_waits(plan.layout()), 0.2);
  EXPECT_THAT(table, Contains(HasSubstr("2 stages, 1f1b, 4 micro-batches; a stage waits 20% of")));
  EXPECT_THAT(table, Contains(HasSubstr("stage 0 (ranks 0-1): wte to h.1; ")));
  EXPECT_THAT(table, Contains(HasSubstr("stage 1 (ranks 2-3): h.2 to head; ")));
}

TEST(Stages, AndTheirRanksAreInTheMesh) {
  const Plan plan = plan_of(R"({"size": 2, "partition": "uniform"}, "tensor": 2)", 8);
  const std::vector<std::string> mesh =
      report::mesh_lines(plan.layout(), plan.model().resolved.model, "node7.example.com", 9);

  ASSERT_EQ(mesh.size(), 9U);
  EXPECT_EQ(mesh[0], "rank  host   stage   pp  dp  cp  tp  blocks");
  EXPECT_EQ(mesh[1], "   0  node7      0    0   0   0   0  wte to h.1");
  EXPECT_EQ(mesh[4], "   3  node7      0    0   1   0   1  wte to h.1");
  EXPECT_EQ(mesh[5], "   4  node7      1    1   0   0   0  h.2 to head");

  report::TableFacts facts;
  facts.host = "node7";
  EXPECT_THAT(report::first_table(PlanWithData(plan, {}), facts),
              Contains(HasSubstr("rank  host   stage   pp  dp")));
}

TEST(Stages, AreInTheMeshOfRanksThatHoldTheWholeModelToo) {
  const std::vector<std::string> four = report::first_table(PlanWithData(plan_of("1", 4), {}), {});
  const std::vector<std::string> eight = report::first_table(PlanWithData(plan_of("1", 8), {}), {});

  EXPECT_THAT(four, Contains(HasSubstr("mesh        rank  host  stage   pp  dp  cp  tp  blocks")));
  EXPECT_THAT(four, Contains(HasSubstr("    0    0   3   0   0  wte to head")));
  EXPECT_THAT(eight, Contains(HasSubstr("   5  more ranks")));
}

TEST(Stages, RanksReportTheTransformerLayersThatTheyBuilt) {
  const Plan plan = plan_of(R"({"size": 2, "schedule": "zb-v", "partition": [0, 2, 3, 4, 6]})", 4);

  EXPECT_THAT(report::build_lines(plan.layout(), plan.model().resolved.model, 1),
              testing::ElementsAre("Rank1 build layer 0-1, 1/4 layers",
                                   "Rank1 build layer 3-4, 1/4 layers"));
  EXPECT_THAT(report::build_lines(plan.layout(), plan.model().resolved.model, 3),
              testing::ElementsAre("Rank3 build layer 1-2, 1/4 layers",
                                   "Rank3 build layer 2-3, 1/4 layers"));
}

TEST(Stages, OfManyRanksAreCutShortInTheTable) {
  const Plan plan = plan_of(R"({"size": 2, "partition": "uniform"})", 64);

  EXPECT_EQ(report::mesh_lines(plan.layout(), plan.model().resolved.model, "node7", 4).back(),
            "  62  more ranks");
  EXPECT_LE(report::first_table(PlanWithData(plan, {}), {}).size(), 25U);
}

/// Two stages with an untied vocabulary share masters, moments and gradients.
TEST(Stages, NeedLessMemoryThanTheWholeModel) {
  const auto untied = [](const std::string& pipeline, int ranks) {
    return estimate_memory(
        make_plan(json::parse(R"({"model": {"num_layers": 6, "hidden_size": 64, "num_heads": 4,
                                  "tie_embeddings": false, "max_positions": 32},
                        "data": {"train": "a.txt"}, "train_micro_batch_size_per_gpu": 1,
                        "gradient_accumulation_steps": 4, "parallel": {"pipeline": )" +
                                  pipeline + "}}",
                              "c.json"),
                  ranks,
                  "c.json"));
  };
  const MemoryEstimate one = untied("1", 1),
                       two = untied(R"({"size": 2, "partition": [0, 4, 8]})", 2);

  // By hand: a layer has 12 C^2 + 13 C values, the tables V C and T C, the last norm 2 C.
  const std::int64_t C = 64, layer = 12 * C * C + 13 * C;
  EXPECT_EQ(one.optimizer, 8 * (6 * layer + 2 * 256 * C + 32 * C + 2 * C));
  EXPECT_EQ(two.optimizer, 8 * (3 * layer + 256 * C + 32 * C));
  EXPECT_LT(two.activations, one.activations * 2);
}

TEST(Stages, AsMoreThanThereAreBlocksAreRefused) {
  EXPECT_THAT(refusal("7", 7),
              AllOf(HasSubstr("parallel.pipeline"), HasSubstr("7 stages"), HasSubstr("6")));
  EXPECT_THAT(refusal(R"({"size": 2, "schedule": "interleaved", "chunks": 4})", 2),
              AllOf(HasSubstr("parallel.pipeline.chunks"), HasSubstr("8 blocks"), HasSubstr("6")));
}

TEST(Stages, OfAScheduleThatDoesNotFitAreRefused) {
  EXPECT_THAT(refusal(R"({"size": 2, "schedule": "1f1b", "chunks": 2})", 2),
              AllOf(HasSubstr("parallel.pipeline.chunks"), HasSubstr("1f1b works with 1 chunk")));
  EXPECT_THAT(refusal(R"({"size": 2, "schedule": "zb-v", "chunks": 3})", 2),
              HasSubstr("zb-v works with 2 chunks"));
  EXPECT_THAT(refusal(R"({"size": 2, "schedule": "1f2b"})", 2), HasSubstr("1f1b"));
}

TEST(Stages, OfChunksThatDoNotDivideTheBlocksAreRefusedWhereEachShouldHaveAsMany) {
  try {
    (void)make_plan(json::parse(R"({"model": {"num_layers": 5, "hidden_size": 64, "num_heads": 4},
                        "data": {"train": "a.txt", "sequence_length": 32},
                        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
                        "parallel": {"pipeline": {"size": 2, "chunks": 2,
                                                  "partition": "uniform-last"}}})",
                                "c.json"),
                    2,
                    "c.json");
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.text(),
        AllOf(HasSubstr("parallel.pipeline.partition"), HasSubstr("2 chunks do not divide 7")));
  }
}

TEST(Stages, OfAnInvalidPartitionAreRefused) {
  EXPECT_THAT(refusal(R"({"size": 2, "partition": "unifrom"})", 2), HasSubstr("uniform"));
  EXPECT_THAT(refusal(R"({"size": 2, "scatter_gather": true})", 2),
              HasSubstr("there is nothing to scatter"));
  EXPECT_THAT(refusal(R"({"size": 2, "partition": [0, 3, 5]})", 2),
              AllOf(HasSubstr("[0,3,5]"), HasSubstr("3 ascending bounds from 0 to 6")));
  EXPECT_THAT(refusal(R"({"size": 2, "partition": [0, 0, 6]})", 2), HasSubstr("does not cut"));
  EXPECT_THAT(refusal(R"({"size": 2, "partition": "type:linear"})", 2),
              HasSubstr("no block's name matches"));
  EXPECT_THAT(refusal(R"({"size": 2, "partition": "type:("})", 2),
              HasSubstr("not a regular expression"));
  EXPECT_THAT(refusal(R"({"size": 2, "partition": 3})", 2),
              HasSubstr("parallel.pipeline.partition"));
}

TEST(Stages, WithAnOptimizerThatCompressesAllParametersAsOneAreRefused) {
  EXPECT_THAT(refusal("2", 2, R"(, "optimizer": {"type": "OneBitLamb"})"),
              AllOf(HasSubstr("optimizer.type"), HasSubstr("OneBitLamb"), HasSubstr("one scale")));
  EXPECT_EQ(refusal("2", 2, R"(, "optimizer": {"type": "OneBitAdam"})"), "taken");
  EXPECT_EQ(refusal("2", 2, R"(, "optimizer": {"type": "ZeroOneAdam"})"), "taken");
}

}  // namespace
}  // namespace tessera::planner
