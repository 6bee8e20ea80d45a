// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Ranks that share the tokens of every sample train as one that has all, up to rounding.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

std::vector<Layout> both(Layout layout) {
  Layout exchanged = layout;
  exchanged.context_mode = "ulysses";
  return {layout, exchanged};
}

// Without dropout, attention runs in the fused kernel, a block of keys at a time.
TinyRun without_dropout() {
  TinyRun run;
  run.set("model.dropout", "0");
  return run;
}

// Dropout is on: other masks would show in the gradient.
TEST(ContextParallel, TwoRanksTrainAsOne) {
  expect_same(TinyRun(), both({.ranks = 2, .context = 2}), {.steps = kStepOfBound});
  expect_same(without_dropout(), both({.ranks = 2, .context = 2}), {.steps = kStepOfBound});
}

TEST(ContextParallel, FourRanksTrainAsOne) {
  expect_same(TinyRun(), both({.ranks = 4, .context = 4}));
  expect_same(without_dropout(), both({.ranks = 4, .context = 4}));
}

TEST(ContextParallel, TimesDataParallelInEveryStageTrainsAsOne) {
  TinyRun run;
  // With a threshold of 0 every parameter is sharded in stage 3.
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  for (const int stage : {0, 1, 2, 3})
    expect_same(run, both({.ranks = 4, .accumulation = 2, .stage = stage, .context = 2}));
}

TEST(ContextParallel, ReducingOnceTrainsAsOne) {
  TinyRun run;
  run.set("gradient_reduction", "\"once\"");
  for (const int stage : {1, 2})
    expect_same(run, both({.ranks = 4, .accumulation = 2, .stage = stage, .context = 2}));
}

TEST(ContextParallel, TimesPipelineTrainsAsOne) {
  for (const char* tied : {"true", "false"}) {
    TinyRun run;
    run.set("model.tie_embeddings", tied);
    expect_same(run, both({.ranks = 4, .accumulation = 3, .pipeline = "2", .context = 2}));
  }
  expect_same(TinyRun(),
              both({.ranks = 8, .accumulation = 2, .stage = 3, .pipeline = "2", .context = 2}));
}

// Parameters in boxes get shares too, and tensor-parallel ranks may share the tokens once more.
TEST(ContextParallel, TimesTensorParallelTrainsAsOne) {
  for (const bool sequence : {false, true}) {
    expect_same(TinyRun(), both({.ranks = 4, .tensor = 2, .sequence = sequence, .context = 2}));
    expect_same(TinyRun(),
                both({.ranks = 8, .stage = 3, .tensor = 2, .sequence = sequence, .context = 2}));
  }
}

TEST(ContextParallel, GradientsThatTravelAsRowsAreTheSame) {
  TinyRun run;
  run.set("sparse_gradients", "true")
      .set("model.tie_embeddings", "false")
      .set("model.vocab_size", "2000");

  expect_same(run, both({.ranks = 4, .stage = 2, .context = 2}));
}

// A mean over each rank's own tokens would weigh late chunks, which are mostly padding, too much.
TEST(ContextParallel, PaddedDocumentsAreWeighedByTheirTokens) {
  for (const char* dropout : {"0", "0.1"}) {
    TinyRun run;
    run.use_padded_documents().set("model.dropout", dropout);

    expect_same(run, both({.ranks = 4, .accumulation = 2, .context = 2}));
  }
}

TEST(ContextParallel, LabelSmoothingIsTheSame) {
  TinyRun run;
  run.set("model.label_smoothing", "0.1");

  expect_same(run, both({.ranks = 2, .context = 2}));
}

TEST(ContextParallel, RecomputeChangesNothing) {
  expect_recompute_changes_nothing(both({.ranks = 2, .context = 2}));
}

TEST(ContextParallel, SixteenBitsStayWithinTheirRounding) {
  for (const char* kind : {"bf16", "fp16"}) {
    for (const char* dropout : {"0", "0.1"}) {
      SCOPED_TRACE(kind);
      TinyRun run;
      run.set(std::string(kind) + ".enabled", "true").set("model.dropout", dropout);

      expect_same(
          run, both({.ranks = 2, .context = 2}), {kNarrowGradient, kNarrowLoss, kStepOfBound});
      expect_same(
          run, both({.ranks = 4, .stage = 3, .context = 2}), {kNarrowGradient, kNarrowLoss});
    }
  }
}

TEST(ContextParallel, FirstWeightsAreTheSameToTheBit) {
  const TinyRun run;
  const Trace one = run.train({.ranks = 1, .stage = 0}, 0);

  for (const Layout& layout : both({.ranks = 4, .stage = 3, .context = 2}))
    EXPECT_EQ(run.train(layout, 0).digest, one.digest);
}

TEST(ContextParallel, RunsTwiceWithTheSameBits) {
  const TinyRun run;
  for (const Layout& layout : both({.ranks = 4, .stage = 2, .context = 2}))
    EXPECT_EQ(run.train(layout, 4).digest, run.train(layout, 4).digest);
}

TEST(ContextParallel, RulesWithNormsAndWholeTensorsTrainAsOnOneRank) {
  for (const int stage : {0, 3}) {
    expect_rules_same({"Lamb", "Adafactor", "Muon"},
                      both({.ranks = 4, .stage = stage, .context = 2}));
  }
}

TEST(ContextParallel, ClippingSeesTheWholeGradient) {
  expect_clipping_same(both({.ranks = 2, .context = 2}));
}

TEST(ContextParallelCheckpoints, AnyLayoutReadsAnyOthers) {
  const TinyRun run;
  const std::vector<Layout> layouts = {
      {.ranks = 1, .accumulation = 2, .stage = 0},
      {.ranks = 4, .stage = 3, .context = 2},
      {.ranks = 4, .accumulation = 2, .context = 4, .context_mode = "ulysses"},
      {.ranks = 4, .accumulation = 2, .tensor = 2, .context = 2}};
  expect_checkpoints_read_by_all(run, layouts);
}

TEST(ContextParallelText, IsTheSameAsOnOneRank) {
  TinyRun run;
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  for (const Layout& layout : both({.ranks = 2, .context = 2}))
    EXPECT_EQ(run.sample(layout), one);
  EXPECT_EQ(run.sample({.ranks = 4, .stage = 3, .context = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .pipeline = "2", .context = 2}), one);
}

}  // namespace
}  // namespace tessera::test
