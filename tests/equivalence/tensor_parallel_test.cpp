// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Layers that several ranks share train as on one rank: up to rounding, because sums are split
// differently; initial weights and dropout masks are bitwise equal.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

std::vector<Layout> both(Layout layout) {
  Layout cut = layout;
  cut.sequence = true;
  return {layout, cut};
}

// Dropout is on: other masks would show in the gradient.
TEST(TensorParallel, TwoRanksTrainAsOne) {
  expect_same(TinyRun(), both({.ranks = 2, .tensor = 2}), {.steps = kStepOfBound});
}

TEST(TensorParallel, FourRanksTrainAsOne) {
  expect_same(TinyRun(), both({.ranks = 4, .tensor = 4}));
}

TEST(TensorParallel, TimesDataParallelInEveryStageTrainsAsOne) {
  TinyRun run;
  // With a threshold of 0 every parameter is sharded in stage 3.
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  for (const int stage : {0, 1, 2, 3})
    expect_same(run, both({.ranks = 4, .accumulation = 2, .stage = stage, .tensor = 2}));
}

TEST(TensorParallel, TimesPipelineTrainsAsOne) {
  for (const char* tied : {"true", "false"}) {
    TinyRun run;
    run.set("model.tie_embeddings", tied);
    expect_same(run, both({.ranks = 4, .accumulation = 3, .pipeline = "2", .tensor = 2}));
    expect_same(run,
                both({.ranks = 8, .accumulation = 2, .stage = 3, .pipeline = "2", .tensor = 2}));
  }
}

TEST(TensorParallel, ScatteringFlowsBetweenStagesIsTheSame) {
  const TinyRun run;
  Layout layout{.ranks = 4, .accumulation = 3, .pipeline = "2", .tensor = 2};
  const Trace whole = run.train(layout, 3);
  layout.pipeline = R"({"size": 2, "scatter_gather": true})";

  const Trace scattered = run.train(layout, 3);

  EXPECT_EQ(scattered.digest, whole.digest);
  EXPECT_EQ(scattered.losses, whole.losses);
}

TEST(TensorParallel, WithSmallParametersThatStayWhole) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "1000");

  expect_same(run, both({.ranks = 4, .stage = 3, .tensor = 2}));
}

TEST(TensorParallel, ReducingOnceTrainsAsOne) {
  TinyRun run;
  run.set("gradient_reduction", "\"once\"");
  for (const int stage : {1, 2})
    expect_same(run, both({.ranks = 4, .accumulation = 2, .stage = stage, .tensor = 2}));
}

// Stage 3 is the same to the bit with groups and without.
TEST(TensorParallel, TimesGroupsOfShardsIsTheSame) {
  const Layout layout{.ranks = 8, .stage = 3, .tensor = 2, .sequence = true};
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  const Trace whole = run.train(layout, 3);
  run.set("zero_optimization.zero_hpz_partition_size", "2");

  const Trace groups = run.train(layout, 3);

  EXPECT_EQ(groups.digest, whole.digest);
  EXPECT_EQ(groups.losses, whole.losses);
}

TEST(TensorParallel, GradientsThatTravelAsRowsAreTheSame) {
  TinyRun run;
  run.set("sparse_gradients", "true")
      .set("model.tie_embeddings", "false")
      .set("model.vocab_size", "2000");

  expect_same(run, both({.ranks = 4, .stage = 2, .tensor = 2}));
}

// 5 heads over 2 and 3 ranks, 259 tokens over 2, 83 features over 3.
TEST(TensorParallel, HeadsFeaturesAndTokensThatDoNotDivideAreSpread) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("model.ffn_hidden_size", "83")
      .set("model.vocab_size", "259")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  expect_same(run, both({.ranks = 2, .tensor = 2}));
  expect_same(run, both({.ranks = 4, .stage = 3, .tensor = 2}));
  run.set("data.sequence_length", "15").set("model.max_positions", "15");
  expect_same(run, both({.ranks = 3, .tensor = 3}));
}

// Over each rank's own share of the vocabulary both would be other numbers.
TEST(TensorParallel, UntiedHeadAndLabelSmoothing) {
  TinyRun run;
  run.set("model.tie_embeddings", "false")
      .set("model.label_smoothing", "0.1")
      .set("model.qkv_bias", "false");

  expect_same(run, both({.ranks = 2, .tensor = 2}));
}

TEST(TensorParallel, RecomputeChangesNothing) {
  expect_recompute_changes_nothing({{.ranks = 2, .tensor = 2, .sequence = true}});
}

// Ranks that share a micro-batch count its tokens once, whatever the padding.
TEST(TensorParallel, PaddedDocumentsAreWeighedByTheirTokens) {
  TinyRun run;
  run.use_padded_documents();

  expect_same(run, both({.ranks = 4, .accumulation = 2, .tensor = 2}));
}

TEST(TensorParallel, SixteenBitsStayWithinTheirRounding) {
  for (const char* kind : {"bf16", "fp16"}) {
    SCOPED_TRACE(kind);
    TinyRun run;
    run.set(std::string(kind) + ".enabled", "true");

    expect_same(run, both({.ranks = 2, .tensor = 2}), {kNarrowGradient, kNarrowLoss, kStepOfBound});
    expect_same(run,
                {{.ranks = 4, .stage = 3, .tensor = 2, .sequence = true}},
                {kNarrowGradient, kNarrowLoss});
  }
}

TEST(TensorParallel, FirstWeightsAreTheSameToTheBit) {
  TinyRun run;
  run.set("model.hidden_size", "40").set("model.num_heads", "5");
  const Trace one = run.train({.ranks = 1, .stage = 0}, 0);

  EXPECT_EQ(run.train({.ranks = 2, .tensor = 2}, 0).digest, one.digest);
  EXPECT_EQ(run.train({.ranks = 4, .tensor = 4}, 0).digest, one.digest);
  EXPECT_EQ(run.train({.ranks = 4, .stage = 3, .tensor = 2}, 0).digest, one.digest);
}

TEST(TensorParallel, RulesWithNormsAndWholeTensorsTrainAsOnOneRank) {
  for (const int stage : {0, 3}) {
    expect_rules_same({"Lamb", "LARS", "Adafactor", "Muon"},
                      both({.ranks = 4, .stage = stage, .tensor = 2}));
  }
}

TEST(TensorParallel, ClippingSeesTheWholeGradientOnce) {
  expect_clipping_same(both({.ranks = 2, .tensor = 2}));
}

TEST(TensorParallel, RunsTwiceWithTheSameBits) {
  const TinyRun run;
  const Layout layout{.ranks = 4, .stage = 2, .tensor = 2, .sequence = true};

  EXPECT_EQ(run.train(layout, 4).digest, run.train(layout, 4).digest);
}

TEST(TensorParallelCheckpoints, AnyLayoutReadsAnyOthers) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  const std::vector<Layout> layouts = {{.ranks = 1, .accumulation = 2, .stage = 0},
                                       {.ranks = 2, .accumulation = 2, .tensor = 2},
                                       {.ranks = 4, .stage = 3, .tensor = 2, .sequence = true},
                                       {.ranks = 4, .accumulation = 2, .tensor = 4},
                                       {.ranks = 2, .stage = 3}};
  expect_checkpoints_read_by_all(run, layouts);
}

TEST(TensorParallelText, IsTheSameAsOnOneRank) {
  TinyRun run;
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  EXPECT_EQ(run.sample({.ranks = 2, .tensor = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 2, .tensor = 2, .sequence = true}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .stage = 3, .tensor = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .pipeline = "2", .tensor = 2, .sequence = true}), one);
}

}  // namespace
}  // namespace tessera::test
