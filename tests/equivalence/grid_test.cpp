// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// Ranks on a grid (2d, 2.5d, 3d) train as one: sums are cut elsewhere, so up to rounding; first
// weights and dropout masks to the bit.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::testing {
namespace {

const Layout kTwo = {.ranks = 4, .tensor = 4, .mode = "2d"};
const Layout kHalf = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2};
const Layout kThree = {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"};
const std::vector<Layout> kEach = {kTwo, kHalf, kThree};

// Dropout is on: other masks would show in the gradient.
TEST(GridTraining, IsThatOfOneRank) {
  expect_same(TinyRun(), kEach);
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
  // Nothing is small enough to stay whole in stage 3.
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  for (const int stage : {0, 1, 2, 3}) {
    expect_same(
        run,
        {{.ranks = 8, .micro_batch = 2, .stage = stage, .tensor = 4, .mode = "2d"},
         {.ranks = 4, .micro_batch = 2, .stage = stage, .tensor = 2, .mode = "2.5d", .depth = 2}});
  }
}

TEST(GridTraining, TimesPipelineIsThatOfOneRank) {
  for (const char* tied : {"true", "false"}) {
    TinyRun run;
    run.set("model.tie_embeddings", tied);
    expect_same(run, {{.ranks = 8, .accumulation = 3, .pipeline = "2", .tensor = 4, .mode = "2d"}});
  }
}

// Weight gradients are put off, and what travels for them with them.
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
  for (const Layout& layout : kEach) {
    for (const char* kind : {"full", "selective"}) {
      SCOPED_TRACE(layout.mode + ", " + kind);
      TinyRun run;
      const Trace stored = run.train(layout, 3);
      run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

      const Trace again = run.train(layout, 3);

      EXPECT_EQ(again.digest, stored.digest);
      EXPECT_EQ(again.losses, stored.losses);
    }
  }
}

// Every sample has padding of its own length, and the last micro-batch is short.
TEST(GridTraining, PaddedDocumentsAreWeighedByTheirTokens) {
  TinyRun run;
  std::string lines;
  for (int i = 0; i < 45; ++i)
    lines +=
        R"({"text": ")" + std::string(static_cast<std::size_t>(3 + i % 20), 'a' + i % 26) + "\"}\n";
  files::write_atomic(run.folder() / "docs.jsonl", lines);
  run.set("data.train", "\"" + (run.folder() / "docs.jsonl").string() + "\"")
      .set("data.pack", "false")
      .set("data.drop_last", "false");

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

// Norms count every element once, those that several ranks hold too; Adafactor and Muon see whole
// matrices.
TEST(GridTraining, ByRulesWithNormsAndWholeTensorsIsThatOfOneRank) {
  for (const char* rule : {"Lamb", "LARS", "Adafactor", "Muon"}) {
    TinyRun run;
    // Adafactor makes its rate by itself.
    const std::string params = rule == std::string("Adafactor") ? "{}" : R"({"lr": 1e-3})";
    run.set("optimizer", std::string(R"({"type": ")") + rule + R"(", "params": )" + params + "}");
    for (const Layout& layout : kEach) {
      SCOPED_TRACE(layout.mode + ", " + rule);
      const Layout one = {.ranks = 1, .micro_batch = layout.micro_batch, .stage = 0};
      expect_close(run.train(one, 10), run.train(layout, 10), kLoss);
    }
  }
}

TEST(GridTraining, ClippingSeesTheWholeGradientOnce) {
  TinyRun run;
  run.set("gradient_clipping", "0.1");
  for (const Layout& layout : kEach) {
    SCOPED_TRACE(layout.mode);
    const Trace one = run.train({.ranks = 1, .micro_batch = layout.micro_batch, .stage = 0}, 3);
    ASSERT_GT(one.grad_norms[0], 0.2);

    const Trace grid = run.train(layout, 3);

    EXPECT_NEAR(grid.grad_norms[0], one.grad_norms[0], 1e-6 * one.grad_norms[0]);
    expect_close(one, grid, kLoss);
  }
}

TEST(GridTraining, RunsTwiceWithTheSameBits) {
  const TinyRun run;
  for (const Layout& layout : kEach)
    EXPECT_EQ(run.train(layout, 4).digest, run.train(layout, 4).digest) << layout.mode;
}

// Weights and moments come out as they went in, whoever wrote them.
TEST(GridCheckpoints, AreReadByAnyLayoutAndReadAnyOthers) {
  TinyRun run;
  run.set("model.hidden_size", "40")
      .set("model.num_heads", "5")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  std::vector<Layout> layouts = kEach;
  layouts[0].micro_batch = 4;
  layouts.push_back({.ranks = 1, .micro_batch = 4, .stage = 0});
  layouts.push_back({.ranks = 2, .micro_batch = 4, .tensor = 2});
  for (const Layout& writer : layouts) {
    const files::TempDir folder;
    const Trace written = run.train(writer, 3, folder.path());
    const auto saved = *checkpoint::newest(folder.path());
    const Trace whole = run.train(writer, 8);
    for (const Layout& reader : layouts) {
      SCOPED_TRACE(writer.mode + " of " + std::to_string(writer.ranks) + " to " + reader.mode +
                   " of " + std::to_string(reader.ranks));
      EXPECT_EQ(run.train(reader, 3, {}, saved).digest, written.digest);
      // And it goes on as the run would have.
      const Trace rest = run.train(reader, 8, {}, saved);
      ASSERT_EQ(rest.losses.size(), 5U);
      for (std::size_t i = 0; i < rest.losses.size(); ++i)
        EXPECT_NEAR(rest.losses[i], whole.losses[3 + i], kLoss * whole.losses[3 + i]);
    }
  }
}

// One text: most ranks have no sample of it.
TEST(GridText, IsTheSameAsOnOneRank) {
  TinyRun run;
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  for (const Layout& layout : kEach)
    EXPECT_EQ(run.sample(layout), one) << layout.mode;
}

}  // namespace
}  // namespace tessera::testing
