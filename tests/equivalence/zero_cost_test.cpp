// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// What ZeRO costs and saves: bytes that a rank keeps, by the ledger, and elements that it moves, by
// the transport.
#include "equivalence/zero_cost.h"

#include "tessera/planner/memory.h"

namespace tessera::testing {
namespace {

TEST(ZeroMemory, OnTwoRanksIsWhatTheStagePromises) {
  expect_stages_keep_what_they_promise(2);
}

// What else travels: sums of the norm, losses and counts.
constexpr double kTrafficTolerance = 0.005;

TinyRun small_run(const std::string& reduction) {
  TinyRun run;
  run.set("model",
          R"({"num_layers": 4, "hidden_size": 128, "num_heads": 4, "max_positions": 16,
              "tie_embeddings": false})")
      .set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("gradient_reduction", "\"" + reduction + "\"");
  return run;
}

Cost small_cost(int stage, std::int64_t micros, const std::string& reduction) {
  return cost_of(small_run(reduction),
                 {.ranks = 2, .accumulation = micros, .micro_batch = 1, .stage = stage});
}

/// Moves `times` the model's parameters and this many elements less.
void expect_moved(int stage,
                  std::int64_t micros,
                  const std::string& reduction,
                  double times,
                  double less_first = 0,
                  double less_last = 0) {
  const Cost cost = small_cost(stage, micros, reduction);
  const double expected =
      times * cost.padded - less_first * cost.padded_first - less_last * cost.padded_last;
  EXPECT_NEAR(static_cast<double>(cost.traffic.elements), expected, kTrafficTolerance * expected)
      << "stage " << stage << ", " << micros << " micro-batches, " << reduction;
}

TEST(ZeroTraffic, OfEachIsOneReductionAMicroBatchAndOneGather) {
  for (const int stage : {0, 1, 2}) {
    expect_moved(stage, 1, "each", 2);
    expect_moved(stage, 3, "each", 4);
  }
}

TEST(ZeroTraffic, OfOnceIsOneReductionAStepInStagesZeroAndOne) {
  expect_moved(0, 3, "once", 2);
  expect_moved(1, 3, "once", 2);
  expect_moved(2, 3, "once", 4);
}

TEST(ZeroTraffic, OfStageThreeIsTwoGathersAndAReductionAMicroBatch) {
  // Between forward and backward the last block's weights stay, between micro-batches the first
  // one's.
  for (const std::string reduction : {"each", "once"}) {
    expect_moved(3, 1, reduction, 3, 0, 1);
    expect_moved(3, 3, reduction, 9, 2, 3);
  }
}

TEST(ZeroGroups, GatherInsideAndSendOnlyNewWeightsAcross) {
  const Layout layout{.ranks = 4, .accumulation = 2, .micro_batch = 1, .stage = 3};
  TinyRun run = small_run("each");
  const Cost wide = cost_of(run, layout);
  run.set("zero_optimization.zero_hpz_partition_size", "2");
  const Cost grouped = cost_of(run, layout);

  // A micro-batch has two gathers and a reduction, of which the first and the last block save some.
  const double gathers = 4 * wide.padded - wide.padded_first - 2 * wide.padded_last;
  const double reductions = 2 * wide.padded, spread = wide.padded / 2;
  EXPECT_NEAR(static_cast<double>(grouped.in_groups), gathers, kTrafficTolerance * gathers);
  EXPECT_NEAR(static_cast<double>(grouped.traffic.elements),
              gathers + reductions + spread,
              kTrafficTolerance * (gathers + reductions + spread));
  EXPECT_EQ(grouped.in_groups, wide.in_groups);
}

TEST(ZeroGroups, KeepTheWeightsOfTheOtherGroupsToo) {
  TinyRun run = small_run("each");
  // Wide enough that padding is small beside the parameters.
  run.set("model.num_layers", "2")
      .set("model.hidden_size", "512")
      .set("zero_optimization.mics_shard_size", "2");
  const Layout layout{.ranks = 4, .accumulation = 2, .micro_batch = 1, .stage = 3};
  const Cost cost = cost_of(run, layout);
  const auto need = planner::estimate_memory(run.plan(layout));

  EXPECT_EQ(static_cast<double>(bytes(cost, memory::Tag::Parameters)), 4 * cost.padded / 2);
  expect_bytes(8 * cost.padded / 4, bytes(cost, memory::Tag::Optimizer), "optimizer");
  // The estimate counts what is gathered as well: a layer and the next one.
  const double layer = 12 * 512 * 512 + 13 * 512;
  expect_bytes(4 * (cost.padded / 2 + 2 * layer), need.parameters, "estimated weights");
  expect_bytes(8 * cost.padded / 4, need.optimizer, "estimated optimizer");
}

TEST(SparseTraffic, OfTheEmbeddingIsTheRowsThatWereTouched) {
  constexpr double kRows = 2048, kWidth = 128;
  // The text has 17 different characters, a sample 16; a row has two numbers of two words before
  // it, and a message two.
  constexpr double kMostOfARank = 2 + 16 * (kWidth + 4);
  TinyRun run = small_run("each");
  run.set("model.tie_embeddings", "true").set("model.vocab_size", "2048");
  const Layout layout{.ranks = 2, .accumulation = 3, .micro_batch = 1, .stage = 2};
  const Cost dense = cost_of(run, layout);
  run.set("sparse_gradients", "true");
  const Cost sparse = cost_of(run, layout);

  const auto saved = static_cast<double>(dense.traffic.elements - sparse.traffic.elements);
  EXPECT_LT(saved, 3 * kRows * kWidth);
  EXPECT_GT(saved, 3 * (kRows * kWidth - 2 * kMostOfARank) - 3 * 2 * 2 * 2);
  const auto need = planner::estimate_memory(run.plan(layout)).gradients;
  EXPECT_EQ(bytes(sparse, memory::Tag::Gradients) - bytes(dense, memory::Tag::Gradients),
            static_cast<std::int64_t>(2 * kRows * kWidth));
  EXPECT_NEAR(static_cast<double>(need),
              static_cast<double>(bytes(sparse, memory::Tag::Gradients)),
              0.05 * static_cast<double>(need));
}

TEST(NarrowTraffic, IsHalfTheBytesOfTheGradients) {
  for (const std::string reduction : {"each", "once"}) {
    SCOPED_TRACE(reduction);
    TinyRun run = small_run(reduction);
    run.set("model.num_layers", "2").set("model.hidden_size", "512");
    const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = 1};
    const Cost wide = cost_of(run, layout);
    run.set("communication_data_type", "\"bf16\"");
    const Cost narrow = cost_of(run, layout);

    const double reductions = reduction == "each" ? 2 : 1;
    EXPECT_EQ(static_cast<double>(wide.traffic.bytes - narrow.traffic.bytes),
              2 * reductions * wide.padded);
    EXPECT_EQ(wide.traffic.elements, narrow.traffic.elements);
    const auto need = planner::estimate_memory(run.plan(layout)).gradients;
    expect_bytes(static_cast<double>(need), bytes(narrow, memory::Tag::Gradients), "gradients");
  }
}

}  // namespace
}  // namespace tessera::testing
