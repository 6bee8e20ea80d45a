// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// Ranks on a grid (2d, 2.5d, 3d) train as one rank: up to rounding, because sums are split
// differently; initial weights and dropout masks are bitwise equal.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

const Layout kTwo = {.ranks = 4, .tensor = 4, .mode = "2d"};
const Layout kHalf = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2};
const Layout kThree = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"};
const std::vector<Layout> kEach = {kTwo, kHalf, kThree};

// Dropout is on: other masks would show in the gradient.
TEST(GridTraining, IsThatOfOneRank) {
  expect_same(TinyRun(), kEach, {.steps = kStepOfBound});
}

// Three and seven samples do not divide.
TEST(GridTraining, OfSamplesThatDoNotDivideIsThatOfOneRank) {
  Layout two = kTwo, half = kHalf, three = kThree;
  two.micro_batch = 3;
  half.micro_batch = three.micro_batch = 7;
  expect_same(TinyRun(), {two, half, three});
}

TEST(GridTraining, TimesDataParallelInEveryStageIsThatOfOneRank) {
  TinyRun run;
  // With a threshold of 0 every parameter is sharded in stage 3.
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  for (const int stage : {0, 1, 2, 3}) {
    expect_same(
        run,
        {{.ranks = 8, .micro_batch = 2, .stage = stage, .tensor = 4, .mode = "2d"},
         {.ranks = 4, .micro_batch = 2, .stage = stage, .tensor = 2, .mode = "2.5d", .depth = 2}});
  }
}

/// The layouts in both modes of context parallelism.
std::vector<Layout> sharing_tokens(const std::vector<Layout>& layouts) {
  std::vector<Layout> out;
  for (Layout layout : layouts) {
    for (const char* mode : {"ring", "ulysses"}) {
      layout.context = 2;
      layout.context_mode = mode;
      out.push_back(layout);
    }
  }
  return out;
}
const Layout kSharedTwo = {.ranks = 8, .tensor = 4, .mode = "2d"},
             kSharedHalf = {.ranks = 4, .tensor = 2, .mode = "2.5d", .depth = 2};

// With dropout, its masks are split over samples, tokens and channels; without it, attention runs
// in the fused kernel.
TEST(GridTraining, TimesContextParallelIsThatOfOneRank) {
  for (const char* dropout : {"0.1", "0"}) {
    TinyRun run;
    run.set("model.dropout", dropout);
    expect_same(run, sharing_tokens({kSharedTwo, kSharedHalf}));
  }
  expect_same(TinyRun(),
              sharing_tokens({{.ranks = 16, .micro_batch = 4, .tensor = 8, .mode = "3d"}}));
}

// 5 heads are 3 and 2, three samples 2 and 1.
TEST(GridTraining, TimesARingSpreadsWhatDoesNotDivide) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("model.ffn_hidden_size", "83")
      .set("model.vocab_size", "259");
  Layout two = kSharedTwo;
  two.context = 2;
  two.micro_batch = 3;

  expect_same(run, {two});
}

// The last micro-batch is short: some ranks have no sample whose tokens they could share.
TEST(GridTraining, TimesContextParallelWeighsPaddedDocumentsByTheirTokens) {
  for (const char* dropout : {"0.1", "0"}) {
    TinyRun run;
    run.use_padded_documents().set("model.dropout", dropout);

    expect_same(run, sharing_tokens({kSharedTwo, kSharedHalf}));
  }
}

TEST(GridTraining, TimesContextDataAndPipelineIsThatOfOneRank) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  Layout sharded = kSharedHalf, staged = kSharedHalf;
  sharded.ranks = staged.ranks = 8;
  sharded.stage = 3;
  staged.accumulation = 3;
  staged.pipeline = "2";

  expect_same(run, sharing_tokens({sharded, staged}));
}

TEST(GridTraining, TimesPipelineIsThatOfOneRank) {
  for (const char* tied : {"true", "false"}) {
    TinyRun run;
    run.set("model.tie_embeddings", tied);
    expect_same(run, {{.ranks = 8, .accumulation = 3, .pipeline = "2", .tensor = 4, .mode = "2d"}});
  }
}

// Weight gradients are deferred, together with the communication for them.
TEST(GridTraining, WithAZeroBubbleScheduleHasTheSameBits) {
  Layout layout = {.ranks = 8, .accumulation = 3, .pipeline = "2", .tensor = 4, .mode = "2d"};
  const TinyRun run;
  const Trace plain = run.train(layout, 3);
  layout.pipeline = R"({"size": 2, "schedule": "zb-h1"})";

  const Trace deferred = run.train(layout, 3);

  EXPECT_EQ(deferred.digest, plain.digest);
  EXPECT_EQ(deferred.losses, plain.losses);
}

TEST(GridTraining, GradientsThatTravelAsRowsAreTheSame) {
  TinyRun run;
  run.set("sparse_gradients", "true")
      .set("model.tie_embeddings", "false")
      .set("model.vocab_size", "2000");

  expect_same(run, {{.ranks = 8, .stage = 2, .tensor = 4, .mode = "2d"}});
}

// 5 heads, 83 features and 259 tokens over 2.
TEST(GridTraining, HeadsFeaturesAndTokensThatDoNotDivideAreSpread) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("model.ffn_hidden_size", "83")
      .set("model.vocab_size", "259");
  expect_same(run, kEach);
}

TEST(GridTraining, WithAnUntiedHeadAndLabelSmoothingIsThatOfOneRank) {
  TinyRun run;
  run.set("model.tie_embeddings", "false")
      .set("model.label_smoothing", "0.1")
      .set("model.qkv_bias", "false");

  expect_same(run, kEach);
}

TEST(GridTraining, RecomputeChangesNothing) {
  expect_recompute_changes_nothing(kEach);
}

// Every sample has padding of another length, and the last micro-batch is short.
TEST(GridTraining, PaddedDocumentsAreWeighedByTheirTokens) {
  TinyRun run;
  run.use_padded_documents();

  expect_same(run, kEach);
}

TEST(GridTraining, In16BitsStaysWithinItsRounding) {
  for (const char* kind : {"bf16", "fp16"}) {
    SCOPED_TRACE(kind);
    TinyRun run;
    run.set(std::string(kind) + ".enabled", "true");

    expect_same(run, kEach, {kNarrowGradient, kNarrowLoss});
  }
}

TEST(GridTraining, BeginsWithTheSameWeightsToTheBit) {
  TinyRun run;
  run.set("model.hidden_size", "40").set("model.num_heads", "5");
  const Trace one = run.train({.ranks = 1, .stage = 0}, 0);

  for (const Layout& layout : kEach)
    EXPECT_EQ(run.train(layout, 0).digest, one.digest) << layout.mode;
}

TEST(GridTraining, ByRulesWithNormsAndWholeTensorsIsThatOfOneRank) {
  expect_rules_same({"Lamb", "LARS", "Adafactor", "Muon"}, kEach);
}

TEST(GridTraining, ClippingSeesTheWholeGradientOnce) {
  expect_clipping_same(kEach);
}

TEST(GridTraining, RunsTwiceWithTheSameBits) {
  const TinyRun run;
  for (const Layout& layout : kEach)
    EXPECT_EQ(run.train(layout, 4).digest, run.train(layout, 4).digest) << layout.mode;
}

TEST(GridCheckpoints, AreReadByAnyLayoutAndReadAnyOthers) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  std::vector<Layout> layouts = kEach;
  layouts[0].micro_batch = 4;
  layouts.push_back({.ranks = 1, .micro_batch = 4, .stage = 0});
  layouts.push_back({.ranks = 2, .micro_batch = 4, .tensor = 2});
  expect_checkpoints_read_by_all(run, layouts);
}

// With one text most ranks have no sample.
TEST(GridText, IsTheSameAsOnOneRank) {
  TinyRun run;
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  for (const Layout& layout : kEach)
    EXPECT_EQ(run.sample(layout), one) << layout.mode;
}

}  // namespace
}  // namespace tessera::test
