// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// What ZeRO costs and saves: bytes that a rank keeps, by the ledger, and elements and bytes that it
// moves, by the transport.
#include "equivalence/zero_cost.h"

#include <string>
#include <utility>
#include <vector>

#include "tessera/parallel/cost.h"
#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

TEST(ZeroMemory, OnTwoRanksIsWhatTheStagePromises) {
  expect_stages_keep_what_they_promise(2);
}

TinyRun small_run(const std::string& reduction) {
  TinyRun run;
  run.set("model",
          R"({"num_layers": 4, "hidden_size": 128, "num_heads": 4, "max_positions": 16,
              "tie_embeddings": false})")
      .set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("gradient_reduction", "\"" + reduction + "\"");
  return run;
}

/// Wide enough that padding is small compared with the parameters.
TinyRun wide_run(const std::string& reduction) {
  TinyRun run = small_run(reduction);
  run.set("model.num_layers", "2").set("model.hidden_size", "512");
  return run;
}

TEST(ZeroMemory, OfOnceDividesTheSumsFromStageTwoOn) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const TinyRun run = wide_run("once");
    const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = stage};
    const Cost cost = cost_of(run, layout);

    expect_bytes(4 * cost.padded / (stage < 2 ? 1 : 2),
                 bytes(cost, memory::Tag::Gradients),
                 "sums of gradients");
    // The rank's own sum is accumulated and communicated in place.
    if (stage < 2) {
      EXPECT_EQ(bytes(cost, memory::Tag::GradientsInFlight), 0);
    }
    expect_bytes(static_cast<double>(planner::estimate_memory(run.plan(layout)).gradients),
                 all_gradient_bytes(cost),
                 "gradients as planned");
  }
}

TEST(ZeroMemory, SumsOfGradientsTakeTheRoomOfActivations) {
  TinyRun run = small_run("each");
  run.set("model.num_layers", "8");
  const auto held_at_once = [&](std::int64_t accumulation) {
    const Cost cost =
        cost_of(run, {.ranks = 1, .accumulation = accumulation, .micro_batch = 32, .stage = 0});
    std::int64_t of_each = 0;
    for (const std::int64_t peak : cost.usage.peak)
      of_each += peak;
    return of_each - cost.peak;
  };

  // A layer has 198,272 parameters; all sums but the last layer's exist when activations are freed.
  EXPECT_GT(held_at_once(1), 4 * 7 * 198272);
  // The second forward pass finds the gradients of the first one.
  EXPECT_LT(held_at_once(2), 4 * 2 * 198272);
}

TEST(ZeroMemory, OfSumsInBf16IsHalf) {
  for (const std::string reduction : {"each", "once"}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(reduction + ", stage " + std::to_string(stage));
      TinyRun run = wide_run(reduction);
      run.set("bf16.enabled", "true").set("data_types.grad_accum_dtype", "\"bf16\"");
      const Cost cost =
          cost_of(run, {.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = stage});

      expect_bytes(2 * cost.padded / (reduction == "once" && stage < 2 ? 1 : 2),
                   bytes(cost, memory::Tag::Gradients),
                   "sums of gradients");
    }
  }
}

// Heads of regions, norms and counts that a rank looks at for a moment.
constexpr double kMoment = 256 << 10;

TEST(ZeroInitialisation, HasNoWholeModelOnAnyRank) {
  for (const std::string bf16 : {"false", "true"}) {
    SCOPED_TRACE("bf16 " + bf16);
    TinyRun run = wide_run("each");
    run.set("model.num_layers", "6").set("bf16.enabled", bf16);
    const double width = bf16 == "true" ? 2 : 4;
    const auto cost_in = [&](int stage) {
      return cost_of(run, {.ranks = 4, .accumulation = 1, .micro_batch = 1, .stage = stage});
    };
    const Cost whole = cost_in(2), sharded = cost_in(3);
    const auto parameters = static_cast<std::size_t>(memory::Tag::Parameters);

    expect_bytes(width * whole.padded, whole.first.peak[parameters], "whole weights");
    expect_bytes(width * sharded.padded / 4, sharded.first.peak[parameters], "sharded weights");
    // Under no name was there more for a moment than a rank's part of one block in fp32.
    EXPECT_LE(static_cast<double>(sharded.first.total_peak - sharded.first.total),
              4 * sharded.largest / 4 + kMoment);
    EXPECT_LT(sharded.largest, sharded.padded / 5);
  }
}

TEST(ZeroLimits, OfLiveWeightsAreSeenInTheLedger) {
  const Layout layout{.ranks = 2, .accumulation = 1, .micro_batch = 1, .stage = 3};
  const auto peak_of = [&](const std::string& key, const std::string& value) {
    TinyRun run = wide_run("each");
    run.set("model.num_layers", "5").set("zero_optimization.stage3_prefetch_bucket_size", "1e9");
    if (!key.empty()) run.set("zero_optimization." + key, value);
    return cost_of(run, layout);
  };
  const auto expect_live = [](double elements, const Cost& cost) {
    expect_bytes(4 * (cost.padded / 2 + elements),
                 cost.usage.peak[static_cast<std::size_t>(memory::Tag::Parameters)],
                 "shards and live weights");
  };

  const Cost free = peak_of("", "");
  expect_live(free.padded, free);
  expect_live(free.largest, peak_of("stage3_prefetch_bucket_size", "0"));
  expect_live(free.largest, peak_of("stage3_max_live_parameters", "1"));
  const auto two = static_cast<std::int64_t>(2 * free.largest);
  expect_live(2 * free.largest, peak_of("stage3_max_live_parameters", std::to_string(two)));
}

TEST(ZeroLimits, OfLiveWeightsAreInThePlan) {
  const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = 3};
  const std::string keep = "stage3_max_reuse_distance", ahead = "stage3_prefetch_bucket_size";
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{keep, "0"},
                                                        {keep, "7e6"},
                                                        {keep, "1e9"},
                                                        {ahead, "0"},
                                                        {ahead, "7e6"},
                                                        {ahead, "1e9"}}) {
    SCOPED_TRACE(key + " " + value);
    TinyRun run = wide_run("each");
    run.set("model.num_layers", "5").set("zero_optimization." + key, value);
    const Cost cost = cost_of(run, layout);

    expect_bytes(static_cast<double>(planner::estimate_memory(run.plan(layout)).parameters),
                 cost.usage.peak[static_cast<std::size_t>(memory::Tag::Parameters)],
                 "weights as planned");
  }
}

TEST(ZeroMemory, OfDirectionsIsInThePlan) {
  for (const std::string optimizer : {"Adafactor", "Muon"}) {
    SCOPED_TRACE(optimizer);
    TinyRun run = wide_run("each");
    run.set("optimizer", R"({"type": ")" + optimizer + R"("})");
    const Layout layout{.ranks = 1, .accumulation = 1, .micro_batch = 1, .stage = 0};
    const Cost cost = cost_of(run, layout);

    expect_bytes(static_cast<double>(planner::estimate_memory(run.plan(layout)).optimizer),
                 cost.usage.peak[static_cast<std::size_t>(memory::Tag::Optimizer)],
                 "states and directions as planned");
  }
}

// A second vector of all momenta, made where they are first exchanged, would be as large as the
// first.
TEST(ZeroMemory, OfExchangedMomentaHasNoSecondVectorOfAll) {
  TinyRun run = wide_run("once");
  run.set("optimizer", R"({"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 1}})")
      .set("model.num_layers", "6");
  const Layout layout{.ranks = 2, .accumulation = 1, .micro_batch = 1, .stage = 1};
  const Cost cost = cost_of(run, layout);

  EXPECT_LE(cost.peak, planner::estimate_memory(run.plan(layout)).total());
}

TEST(ZeroLimits, OfPersistentWeightsLeaveOneMatrixWholeOfFour) {
  const Layout layout{.ranks = 2, .accumulation = 1, .micro_batch = 1, .stage = 3};
  TinyRun run = small_run("each");
  // Vectors, and a matrix of 128 x 128 in each layer.
  run.set("zero_optimization.stage3_param_persistence_threshold", "20000");
  const Cost all = cost_of(run, layout);
  run.set("zero_optimization.stage3_model_persistence_threshold", "30000");
  const Cost some = cost_of(run, layout);

  EXPECT_EQ(all.persistent - some.persistent, 3 * 128 * 128);
  EXPECT_GT(some.persistent, 128 * 128);
}

// Other traffic: sums of the norm, losses and counts.
constexpr double kTrafficTolerance = 0.005;

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

/// Elements of a step that are moved as fp32 gradients and as working weights, as parallel/cost.h
/// predicts them for a model whose weights are all sharded in stage 3.
struct Moved {
  double gradients = 0, weights = 0;
};
Moved moved_in(int ranks, int stage, int micros, const std::string& reduction, const Cost& cost) {
  parallel::ReductionOptions options;
  options.stage = stage;
  options.mode = reduction == "once" ? parallel::Reduction::Once : parallel::Reduction::Each;
  const comm::GroupPlace place{1, ranks};
  const auto whole = [](double numel) { return static_cast<std::int64_t>(numel); };
  const auto weights = [&](int block, double numel) {
    const int gathers = parallel::gathers_of(stage == 3, block, /*num_blocks=*/3, micros);
    return parallel::gather_cost(
               stage, whole(numel), DType::BF16, options.accumulate, gathers, place)
        .elements;
  };
  const double others = cost.padded - cost.padded_first - cost.padded_last;
  return {parallel::reduction_cost(options, whole(cost.padded), micros, place).elements,
          weights(0, cost.padded_first) + weights(1, others) + weights(2, cost.padded_last)};
}

TEST(ZeroTraffic, IsGradientsInFp32AndWeightsInBf16OnAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::string reduction : {"each", "once"}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", " +
                     reduction);
        TinyRun run = small_run(reduction);
        run.set("bf16.enabled", "true");
        const Cost cost =
            cost_of(run, {.ranks = ranks, .accumulation = 2, .micro_batch = 1, .stage = stage});
        const Moved moved = moved_in(ranks, stage, 2, reduction, cost);
        // In stage 0 every rank has the whole sums, and computes all weights itself.
        const double width = stage == 0 ? 4 : 2;
        const double elements = moved.gradients + moved.weights;
        const double expected = 4 * moved.gradients + width * moved.weights;

        EXPECT_NEAR(
            static_cast<double>(cost.traffic.elements), elements, kTrafficTolerance * elements);
        EXPECT_NEAR(
            static_cast<double>(cost.traffic.bytes), expected, kTrafficTolerance * expected);
      }
    }
  }
}

TEST(ZeroTraffic, OfWhatStaysWholeInStageThreeIsOneGatherAStep) {
  for (const std::int64_t micros : {1, 3}) {
    TinyRun run = small_run("each");
    // Leaves matrices of 128 x 128 whole, as well as vectors.
    run.set("zero_optimization.stage3_param_persistence_threshold", "20000");
    const Cost cost =
        cost_of(run, {.ranks = 2, .accumulation = micros, .micro_batch = 1, .stage = 3});
    const auto k = static_cast<double>(micros);
    const double sharded = cost.padded - cost.persistent;
    const double expected = 3 * k * sharded - k * cost.sharded_last - (k - 1) * cost.sharded_first +
                            (k + 1) * cost.persistent;

    EXPECT_GT(cost.persistent, 0.05 * cost.padded);
    EXPECT_NEAR(static_cast<double>(cost.traffic.elements), expected, kTrafficTolerance * expected);
  }
}

TEST(ZeroTraffic, OfStageThreeIsOneGatherAStepWhereNothingIsGivenBack) {
  for (const std::int64_t micros : {1, 3}) {
    TinyRun run = small_run("each");
    run.set("zero_optimization.stage3_max_reuse_distance", "1e9");
    const Cost cost =
        cost_of(run, {.ranks = 2, .accumulation = micros, .micro_batch = 1, .stage = 3});

    const double expected = static_cast<double>(micros + 1) * cost.padded;
    EXPECT_NEAR(static_cast<double>(cost.traffic.elements), expected, kTrafficTolerance * expected);
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
  TinyRun run = wide_run("each");
  run.set("zero_optimization.mics_shard_size", "2");
  const Layout layout{.ranks = 4, .accumulation = 2, .micro_batch = 1, .stage = 3};
  const Cost cost = cost_of(run, layout);
  const auto need = planner::estimate_memory(run.plan(layout));

  EXPECT_EQ(static_cast<double>(bytes(cost, memory::Tag::Parameters)), 4 * cost.padded / 2);
  expect_bytes(8 * cost.padded / 4, bytes(cost, memory::Tag::Optimizer), "optimizer");
  // The estimate also counts gathered weights: a layer and the next one.
  const double layer = 12 * 512 * 512 + 13 * 512;
  expect_bytes(4 * (cost.padded / 2 + 2 * layer), need.parameters, "estimated weights");
  expect_bytes(8 * cost.padded / 4, need.optimizer, "estimated optimizer");
}

TEST(QuantizedGathers, MoveAByteForEachWeightAndAScaleForEachBlock) {
  TinyRun run = wide_run("each");
  run.set("zero_optimization.zero_quantized_weights", "true").set("bf16.enabled", "true");
  const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = 3};
  const Cost cost = cost_of(run, layout);
  const auto need = planner::estimate_memory(run.plan(layout));
  const double codes = cost.padded * (1 + 4.0 / 256);

  // The rank's own part in bf16, and its codes.
  expect_bytes(2 * cost.padded / 2 + codes / 2, bytes(cost, memory::Tag::Parameters), "weights");
  const double layer = 12 * 512 * 512 + 13 * 512;
  expect_bytes(2 * cost.padded / 2 + codes / 2 + 2 * layer * (2 + 1 + 4.0 / 256),
               need.parameters,
               "estimated weights");
}

TEST(SparseTraffic, OfTheEmbeddingIsTheRowsThatWereTouched) {
  constexpr double kRows = 2048, kWidth = 128;
  // The text has 17 different characters and a sample 16; a row is preceded by two numbers of two
  // words, and a message by two.
  constexpr double kMostOfARank = 2 + 16 * (kWidth + 4);
  TinyRun run = small_run("each");
  run.set("model.vocab_size", "2048");
  const Layout layout{.ranks = 2, .accumulation = 3, .micro_batch = 1, .stage = 2};
  const Cost dense = cost_of(run, layout);
  run.set("sparse_gradients", "true");
  const Cost sparse = cost_of(run, layout);

  const auto saved = static_cast<double>(dense.traffic.elements - sparse.traffic.elements);
  EXPECT_LT(saved, 3 * kRows * kWidth);
  EXPECT_GT(saved, 3 * (kRows * kWidth - 2 * kMostOfARank) - 3 * 2 * 2 * 2);
  // The buffers for what is sent stay allocated.
  const auto room = static_cast<double>(all_gradient_bytes(sparse) - all_gradient_bytes(dense));
  EXPECT_GT(room, 0);
  EXPECT_LE(room, 4 * 2 * kMostOfARank);
  const auto need = planner::estimate_memory(run.plan(layout)).gradients;
  EXPECT_NEAR(static_cast<double>(need),
              static_cast<double>(all_gradient_bytes(sparse)),
              0.05 * static_cast<double>(need));
}

TEST(SparseTraffic, OfATiedTableIsTheHeadsGradientAndRows) {
  constexpr double kTable = 2048 * 128;
  TinyRun run = small_run("each");
  run.set("model.vocab_size", "2048");
  const Layout layout{.ranks = 2, .accumulation = 3, .micro_batch = 1, .stage = 2};
  run.set("sparse_gradients", "true");
  const Cost untied = cost_of(run, layout);
  run.set("sparse_gradients", "false").set("model.tie_embeddings", "true");
  const Cost tied = cost_of(run, layout);

  // Weights of one table less, and the sums of its chunks in the norm.
  EXPECT_EQ(static_cast<double>(untied.traffic.elements - tied.traffic.elements),
            kTable + kTable / kChunk);
  EXPECT_EQ(untied.traffic.calls - tied.traffic.calls, 1);
  const auto kept = static_cast<double>(bytes(tied, memory::Tag::Gradients));
  expect_bytes(4 * tied.padded / 2, bytes(tied, memory::Tag::Gradients), "sums of gradients");
  const auto need = planner::estimate_memory(run.plan(layout)).gradients;
  EXPECT_NEAR(static_cast<double>(need),
              kept + static_cast<double>(bytes(tied, memory::Tag::GradientsInFlight)),
              0.05 * static_cast<double>(need));
}

TEST(NarrowTraffic, IsHalfTheBytesOfTheGradients) {
  for (const std::string reduction : {"each", "once"}) {
    SCOPED_TRACE(reduction);
    TinyRun run = wide_run(reduction);
    const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 1, .stage = 1};
    const Cost wide = cost_of(run, layout);
    run.set("communication_data_type", "\"bf16\"");
    const Cost narrow = cost_of(run, layout);

    const double reductions = reduction == "each" ? 2 : 1;
    EXPECT_EQ(static_cast<double>(wide.traffic.bytes - narrow.traffic.bytes),
              2 * reductions * wide.padded);
    EXPECT_EQ(wide.traffic.elements, narrow.traffic.elements);
    const auto need = planner::estimate_memory(run.plan(layout)).gradients;
    expect_bytes(static_cast<double>(need), all_gradient_bytes(narrow), "gradients");
  }
}

}  // namespace
}  // namespace tessera::test
