// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// ZeRO stages, reductions and recomputation against stage 0, which replicates everything.
#include <cmath>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4;

/// With a threshold of 0 stage 3 really shards this tiny model.
TinyRun sharded_run() {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  return run;
}

void expect_stages_equal(const TinyRun& run, int ranks, std::int64_t accumulation) {
  const Trace reference =
      run.train({.ranks = ranks, .accumulation = accumulation, .stage = 0}, kSteps);
  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(kSteps));
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage) + " ranks " + std::to_string(ranks));
    expect_same_bits(
        reference,
        run.train({.ranks = ranks, .accumulation = accumulation, .stage = stage}, kSteps));
  }
}

TEST(Zero, StagesGiveTheSameBitsOnTwoRanks) {
  expect_stages_equal(sharded_run(), 2, 2);
}

TEST(Zero, StagesGiveTheSameBitsOnThreeRanksInBf16) {
  TinyRun run = sharded_run();
  run.set("bf16.enabled", "true");

  expect_stages_equal(run, 3, 1);
}

TEST(Zero, StagesGiveTheSameBitsOnThreeRanksInFp16) {
  TinyRun run = sharded_run();
  run.set("fp16.enabled", "true");

  expect_stages_equal(run, 3, 1);
}

TEST(Zero, StagesGiveTheSameBitsWithoutFp32Masters) {
  TinyRun run = sharded_run();
  run.set("bf16", R"({"enabled": true, "bf16_master_weights_and_grads": true})");
  expect_stages_equal(run, 3, 1);

  run.set("bf16.bf16_optimizer_states", "true");
  expect_stages_equal(run, 2, 2);
}

TEST(Zero, StagesGiveTheSameBitsWithFp16Masters) {
  TinyRun run = sharded_run();
  run.set("fp16", R"({"enabled": true, "fp16_master_weights_and_grads": true})");
  expect_stages_equal(run, 3, 1);
  expect_stages_equal(run, 2, 2);
}

TEST(Zero, StagesGiveTheSameBitsOnFourRanksWithUntiedHead) {
  TinyRun run = sharded_run();
  run.set("model.tie_embeddings", "false");

  expect_stages_equal(run, 4, 2);
}

TEST(Zero, EveryStageEqualsOneRankWithTheSameMicroBatches) {
  const TinyRun run = sharded_run();
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);

  for (const int stage : {2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    expect_same_bits(reference, run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps));
    expect_same_bits(reference, run.train({.ranks = 4, .accumulation = 1, .stage = stage}, kSteps));
  }
}

TEST(Zero, WhatIsGatheredWhenDoesNotChangeABit) {
  const TinyRun plain = sharded_run();
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 3};
  const Trace reference = plain.train(layout, kSteps);

  TinyRun none = sharded_run();
  none.set("zero_optimization.stage3_prefetch_bucket_size", "0");
  TinyRun tight = sharded_run();
  tight.set("zero_optimization.stage3_max_live_parameters", "1");
  TinyRun kept = sharded_run();
  kept.set("zero_optimization.stage3_max_reuse_distance", "1e9");
  TinyRun persistent;
  persistent.set("zero_optimization.stage3_param_persistence_threshold", "2000");
  TinyRun capped;
  capped.set("zero_optimization.stage3_model_persistence_threshold", "5000");

  expect_same_bits(reference, none.train(layout, kSteps));
  expect_same_bits(reference, tight.train(layout, kSteps));
  expect_same_bits(reference, kept.train(layout, kSteps));
  expect_same_bits(reference, persistent.train(layout, kSteps));
  expect_same_bits(reference, capped.train(layout, kSteps));
}

/// Groups of every size that divides the ranks, by either name.
TEST(ZeroGroups, GiveTheSameBitsAsStageZero) {
  TinyRun run = sharded_run();
  run.set("bf16.enabled", "true").set("model.tie_embeddings", "false");
  const Layout zero{.ranks = 4, .accumulation = 2, .stage = 0};
  const Layout three{.ranks = 4, .accumulation = 2, .stage = 3};
  const Trace reference = run.train(zero, kSteps);

  for (const auto& [key, size] : {std::pair("zero_hpz_partition_size", "2"),
                                  std::pair("mics_shard_size", "2"),
                                  std::pair("mics_shard_size", "1"),
                                  std::pair("mics_shard_size", "4")}) {
    SCOPED_TRACE(std::string(key) + " " + size);
    TinyRun grouped = run;
    expect_same_bits(
        reference, grouped.set("zero_optimization." + std::string(key), size).train(three, kSteps));
  }
}

TEST(ZeroGroups, OfThreeInSixRanksGiveTheSameBitsInFp32) {
  const TinyRun run = sharded_run();
  const Trace reference = run.train({.ranks = 6, .accumulation = 1, .stage = 0}, kSteps);

  for (const char* size : {"2", "3"}) {
    TinyRun grouped = sharded_run();
    grouped.set("zero_optimization.zero_hpz_partition_size", size)
        .set("zero_optimization.stage3_max_live_parameters", "1");
    expect_same_bits(reference, grouped.train({.ranks = 6, .accumulation = 1, .stage = 3}, kSteps));
  }
}

TEST(ZeroGroups, GoOnFromAndIntoOtherLayouts) {
  TinyRun run = sharded_run();
  TinyRun grouped = sharded_run();
  grouped.set("zero_optimization.mics_shard_size", "2");
  const Layout two{.ranks = 4, .accumulation = 1, .stage = 3};
  const Layout other{.ranks = 2, .accumulation = 2, .stage = 1};
  const Trace whole = run.train(other, 2 * kSteps);
  const files::TempDir folder, back;
  (void)grouped.train(two, kSteps, folder.path());
  (void)run.train(other, kSteps, back.path());

  for (const auto& [next, layout, from] : {std::tuple(&grouped, two, &folder),
                                           std::tuple(&run, other, &folder),
                                           std::tuple(&grouped, two, &back)}) {
    const Trace rest = next->train(layout, 2 * kSteps, {}, *checkpoint::newest(from->path()));
    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }
}

/// Weights are rounded in blocks of the flat buffers, which do not depend on the ranks.
TEST(QuantizedGathers, GiveTheSameBitsOnAnyNumberOfRanksAndGroups) {
  for (const char* bf16 : {"false", "true"}) {
    SCOPED_TRACE(std::string("bf16 ") + bf16);
    TinyRun run = sharded_run();
    run.set("bf16.enabled", bf16).set("zero_optimization.zero_quantized_weights", "true");
    TinyRun grouped = run;
    grouped.set("zero_optimization.zero_hpz_partition_size", "2");
    const Layout four{.ranks = 4, .accumulation = 1, .stage = 3};
    const Trace reference = run.train({.ranks = 2, .accumulation = 2, .stage = 3}, kSteps);

    expect_same_bits(reference, run.train(four, kSteps));
    expect_same_bits(reference, grouped.train(four, kSteps));
  }
}

TEST(QuantizedGathers, StayNearTheExactRun) {
  TinyRun run = sharded_run();
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 3};
  const Trace exact = run.train(layout, kSteps);
  run.set("zero_optimization.zero_quantized_weights", "true");
  const Trace rounded = run.train(layout, kSteps);

  ASSERT_EQ(rounded.losses.size(), exact.losses.size());
  EXPECT_NE(rounded.losses.front(), exact.losses.front());
  // A weight changes by at most 1/254 of the largest of its block.
  for (std::size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.01 * exact.losses[i]);
}

/// The gradient of a micro-batch is rounded in blocks, wherever it was made.
TEST(QuantizedGradients, GiveTheSameBitsAsOneRankThatRoundsThem) {
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    TinyRun run = sharded_run();
    run.set("communication_data_type", "\"int8\"");
    const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = stage}, kSteps);

    expect_same_bits(reference, run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps));
    expect_same_bits(reference, run.train({.ranks = 4, .accumulation = 1, .stage = stage}, kSteps));
  }
}

TEST(QuantizedGradients, OfEachRankOnceStayNearTheExactRun) {
  for (const char* mode : {"each", "once"}) {
    SCOPED_TRACE(mode);
    TinyRun run = sharded_run();
    run.set("gradient_reduction", "\"" + std::string(mode) + "\"");
    const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1};
    const Trace exact = run.train(layout, kSteps);
    const Trace rounded = run.set("communication_data_type", "\"int8\"").train(layout, kSteps);

    ASSERT_EQ(rounded.losses.size(), exact.losses.size());
    EXPECT_NE(rounded.losses.back(), exact.losses.back());
    // An element of the gradient changes by at most 1/254 of the largest of its block.
    for (std::size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.01 * exact.losses[i]);
  }
}

TEST(QuantizedGathers, GoWithQuantizedGradientsAsInZeroPlusPlus) {
  TinyRun run = sharded_run();
  run.set("zero_optimization.zero_quantized_weights", "true")
      .set("zero_optimization.zero_quantized_gradients", "true")
      .set("zero_optimization.zero_hpz_partition_size", "2")
      .set("bf16.enabled", "true");
  TinyRun ungrouped = run;
  ungrouped.set("zero_optimization.zero_hpz_partition_size", "1");

  expect_same_bits(run.train({.ranks = 4, .accumulation = 1, .stage = 3}, kSteps),
                   ungrouped.train({.ranks = 2, .accumulation = 2, .stage = 3}, kSteps));
}

TEST(QuantizedGathers, ResumeToTheBit) {
  TinyRun run = sharded_run();
  run.set("zero_optimization.zero_quantized_weights", "true");
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 3};
  const Trace whole = run.train(layout, 2 * kSteps);
  const files::TempDir folder;
  (void)run.train(layout, kSteps, folder.path());

  const Trace rest = run.train(layout, 2 * kSteps, {}, *checkpoint::newest(folder.path()));
  EXPECT_EQ(rest.digest, whole.digest);
  EXPECT_EQ(rest.eval_losses, whole.eval_losses);
}

TEST(Zero, ABucketSmallerThanAParameterChangesNoBit) {
  TinyRun small = sharded_run();
  small.set("zero_optimization.reduce_bucket_size", "1");
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 2};

  expect_same_bits(sharded_run().train(layout, kSteps), small.train(layout, kSteps));
}

TEST(Zero, MoreRanksThanElementsOfABlockWork) {
  TinyRun run = sharded_run();
  run.set("model.hidden_size", "4").set("model.num_heads", "2").set("model.num_layers", "1");

  expect_stages_equal(run, 4, 1);
}

TEST(SparseGradients, GiveTheSameBitsAsDenseOnes) {
  for (const char* tied : {"true", "false"}) {
    for (const char* reduction : {"\"each\"", "\"once\""}) {
      TinyRun dense = sharded_run();
      dense.set("model.tie_embeddings", tied).set("gradient_reduction", reduction);
      TinyRun sparse = dense;
      sparse.set("sparse_gradients", "true");
      for (const Layout& layout : {Layout{.ranks = 3, .accumulation = 2, .stage = 0},
                                   Layout{.ranks = 2, .accumulation = 3, .stage = 2},
                                   Layout{.ranks = 2, .accumulation = 1, .stage = 3}}) {
        SCOPED_TRACE(std::string("tied ") + tied + " " + reduction + " stage " +
                     std::to_string(layout.stage));
        expect_same_bits(dense.train(layout, kSteps), sparse.train(layout, kSteps));
      }
    }
  }
}

TEST(SparseGradients, FallBackToDenseOnesWhereRowsAreMany) {
  TinyRun run = sharded_run();
  // A dozen letters of 256, which each of 8 ranks may send to one of them.
  run.set("model.vocab_size", "256").set("model.tie_embeddings", "false");
  const Layout layout{.ranks = 8, .accumulation = 1, .micro_batch = 4, .stage = 1};
  const Trace dense = run.train(layout, 2);

  run.set("sparse_gradients", "true");

  expect_same_bits(dense, run.train(layout, 2));
}

/// Gradients that are rounded before they are sent are the same on any number of ranks.
TEST(NarrowTravel, GivesTheSameBitsInEveryLayout) {
  for (const char* type : {"\"bf16\"", "\"fp16\""}) {
    SCOPED_TRACE(type);
    TinyRun run = sharded_run();
    const Trace wide = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
    run.set("communication_data_type", type);
    const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);

    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      expect_same_bits(reference,
                       run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps));
      expect_same_bits(reference,
                       run.train({.ranks = 4, .accumulation = 1, .stage = stage}, kSteps));
    }
    EXPECT_NE(reference.grad_norms, wide.grad_norms);
    // 8 or 11 bits of a value, of very many values.
    EXPECT_NEAR(reference.grad_norms[0], wide.grad_norms[0], 1e-3 * wide.grad_norms[0]);
  }
}

// A single rank communicates nothing: it rounds the gradient of every block and adds it itself.
TEST(NarrowTravel, OfOnceIsThatOfEachOnOneRank) {
  TinyRun each = sharded_run();
  each.set("communication_data_type", "\"bf16\"").set("model.num_layers", "6");
  TinyRun once = each;
  once.set("gradient_reduction", "\"once\"");
  for (const int stage : {2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const Layout layout{.ranks = 1, .accumulation = 4, .stage = stage};

    expect_same_bits(each.train(layout, kSteps), once.train(layout, kSteps));
  }
}

TEST(NarrowTravel, OfOnceAgreesInPairsOfStages) {
  TinyRun run = sharded_run();
  run.set("communication_data_type", "\"bf16\"").set("gradient_reduction", "\"once\"");
  std::vector<Trace> traces;
  for (const int stage : {0, 1, 2, 3})
    traces.push_back(run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps));

  expect_same_bits(traces[0], traces[1]);
  expect_same_bits(traces[2], traces[3]);
}

// Sums are split differently: this is the design's bound between the two pairs.
constexpr double kPairTolerance = 2e-6;

TEST(ReduceOnce, StagesAgreeInPairsAndThePairsWithinRounding) {
  TinyRun run = sharded_run();
  run.set("gradient_reduction", "\"once\"").set("model.dropout", "0");
  std::vector<Trace> traces;
  for (const int stage : {0, 1, 2, 3})
    traces.push_back(run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps));

  expect_same_bits(traces[0], traces[1]);
  expect_same_bits(traces[2], traces[3]);
  EXPECT_NEAR(
      traces[0].grad_norms[0], traces[2].grad_norms[0], kPairTolerance * traces[0].grad_norms[0]);
  EXPECT_EQ(traces[0].losses[0], traces[2].losses[0]);
}

TEST(ReduceOnce, PairsAgreeWithinRoundingInTheFirstGradientOfEveryTensor) {
  for (const char* bf16 : {"false", "true"}) {
    TinyRun run = sharded_run();
    run.set("gradient_reduction", "\"once\"")
        .set("gradient_clipping", "0")
        .set("bf16.enabled", bf16);
    for (const auto& [ranks, accumulation] : {std::pair(2, 2), std::pair(4, 3)}) {
      SCOPED_TRACE(std::string("bf16 ") + bf16 + ", " + std::to_string(ranks) + " ranks");
      std::vector<Gradient> gradients;
      for (const int stage : {0, 1, 2, 3}) {
        gradients.push_back(
            run.first_gradient({.ranks = ranks, .accumulation = accumulation, .stage = stage}));
      }

      EXPECT_EQ(gradients[0], gradients[1]);
      EXPECT_EQ(gradients[2], gradients[3]);
      EXPECT_NE(gradients[0], gradients[2]);
      expect_close(gradients[0], gradients[2], kPairTolerance);
    }
  }
}

TEST(ReduceOnce, EqualsEachWhereThereIsOneMicroBatch) {
  TinyRun once = sharded_run();
  once.set("gradient_reduction", "\"once\"");
  const Layout layout{.ranks = 3, .accumulation = 1, .stage = 2};

  expect_same_bits(sharded_run().train(layout, kSteps), once.train(layout, kSteps));
}

TEST(NarrowSums, GiveTheSameBitsInEveryStage) {
  TinyRun run = sharded_run();
  run.set("bf16.enabled", "true");
  const Trace wide = run.train({.ranks = 2, .accumulation = 2, .stage = 0}, kSteps);
  run.set("data_types.grad_accum_dtype", "\"bf16\"");

  expect_stages_equal(run, 2, 2);
  EXPECT_NE(wide.grad_norms,
            run.train({.ranks = 2, .accumulation = 2, .stage = 0}, kSteps).grad_norms);
}

TEST(Recompute, ChangesNoBitWithDropoutInAnyStage) {
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 3};
  const Trace reference = sharded_run().train(layout, kSteps);

  for (const std::string kind : {"\"full\"", "\"selective\""}) {
    SCOPED_TRACE(kind);
    TinyRun run = sharded_run();
    run.set("activation_checkpointing.granularity", kind);
    expect_same_bits(reference, run.train(layout, kSteps));
  }
  TinyRun some = sharded_run();
  some.set("activation_checkpointing.granularity", "\"full\"")
      .set("activation_checkpointing.every_n", "2");
  expect_same_bits(reference, some.train(layout, kSteps));
}

TEST(Recompute, ChangesNoBitOnPaddedDocumentsInBf16) {
  TinyRun plain = sharded_run(), again = sharded_run();
  for (TinyRun* run : {&plain, &again})
    run->set("bf16.enabled", "true");
  again.set("activation_checkpointing.enabled", "true");
  const Layout layout{.ranks = 1, .accumulation = 2, .stage = 0};

  expect_same_bits(plain.train(layout, kSteps), again.train(layout, kSteps));
}

TEST(Clipping, ByValueIsTheSameInEveryStage) {
  TinyRun run = sharded_run();
  run.set("gradient_clip_value", "0.01");

  expect_stages_equal(run, 2, 1);
  EXPECT_NE(run.train({.ranks = 2}, 2).grad_norms, sharded_run().train({.ranks = 2}, 2).grad_norms);
}

TEST(MovingParameters, OneCycleAndAGrowingDecayAreTheSameInEveryStage) {
  TinyRun run = sharded_run();
  run.set(
         "scheduler",
         R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2}})")
      .set("optimizer.weight_decay_schedule",
           R"({"style": "linear", "start": 0, "end": 0.1, "steps": 4})");
  TinyRun still = sharded_run();
  still.set(
      "scheduler",
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2, "cycle_momentum": false}})");

  expect_stages_equal(run, 2, 1);
  EXPECT_NE(run.train({.ranks = 2}, kSteps).digest, still.train({.ranks = 2}, kSteps).digest);
}

TEST(ParamGroups, FreezeAndSlowParametersInEveryStage) {
  TinyRun run = sharded_run();
  run.set(
      "optimizer.groups",
      R"([{"pattern": "^wpe", "frozen": true}, {"pattern": "attn", "lr": 1e-4, "weight_decay": 0}])");

  expect_stages_equal(run, 2, 2);
}

TEST(ParamGroups, AFrozenParameterKeepsItsFirstBits) {
  TinyRun frozen = sharded_run();
  frozen.set("optimizer.groups", R"([{"pattern": "^wpe", "frozen": true}])");
  const auto line_of = [](const Trace& trace) {
    for (const std::string& line : trace.digest) {
      if (line.starts_with("wpe.weight ")) return line;
    }
    return std::string("absent");
  };
  const std::string after_one = line_of(frozen.train({.ranks = 2, .stage = 3}, 1));

  EXPECT_EQ(after_one, line_of(frozen.train({.ranks = 2, .stage = 3}, 3)));
  EXPECT_NE(after_one, line_of(sharded_run().train({.ranks = 2, .stage = 3}, 3)));
  EXPECT_NE(after_one, "absent");
}

TEST(Resume, FromOneStageIntoEveryOther) {
  const TinyRun run = sharded_run();
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 0}, 2 * kSteps);
  for (const int from : {0, 1, 2, 3}) {
    const files::TempDir folder;
    (void)run.train({.ranks = 2, .accumulation = 2, .stage = from}, kSteps, folder.path());
    for (const int to : {0, 1, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(from) + " into stage " + std::to_string(to));
      const int ranks = to % 2 == 0 ? 4 : 2;
      const Trace rest = run.train({.ranks = ranks, .accumulation = 4 / ranks, .stage = to},
                                   2 * kSteps,
                                   {},
                                   *checkpoint::newest(folder.path()));
      EXPECT_EQ(rest.digest, whole.digest);
      EXPECT_EQ(rest.eval_losses, whole.eval_losses);
    }
  }
}

}  // namespace
}  // namespace tessera::test
