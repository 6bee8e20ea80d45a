// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// OPT and GPT-NeoX train on any number of ranks as on one: narrow token embeddings, norms after the
// branches, and parallel branches, where ranks share layers, tokens and samples.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

/// Like OPT-350M: embeddings of 24 channels, norms after the branches.
TinyRun run_of_opt() {
  TinyRun run;
  return run.set("model.family", "\"opt\"")
      .set("model.pre_norm", "false")
      .set("model.embedding_size", "24")
      .set("model.attention_dropout", "0.1");
}

TinyRun run_of_neox() {
  TinyRun run;
  return run.set("model.family", "\"gpt_neox\"").set("model.attention_dropout", "0.1");
}

void expect_same_through_pipeline_and_zero(const TinyRun& run) {
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);
  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 4, .pipeline = "2"},
                           {.ranks = 4, .stage = 3},
                           {.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trace other = run.train(layout, 3);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.eval_losses, one.eval_losses);
  }
}

TEST(OptLayouts, TrainTheParametersOfOpt) {
  std::vector<std::string> names;
  for (const auto& [name, values] : run_of_opt().first_gradient({}))
    names.push_back(name);

  EXPECT_EQ(names.size(), 2U + 2 + 2 * 12);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"project_in.weight", "project_out.weight"}));
}

TEST(OptLayouts, CutHeadsAndFeatures) {
  expect_same(run_of_opt(),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST(OptLayouts, ShareTokens) {
  expect_same(run_of_opt(),
              {{.ranks = 2, .context = 2}, {.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
}

// Positions count the tokens that are no padding, of all tokens of the sample.
TEST(OptLayouts, CountPositionsOfPaddedTexts) {
  TinyRun run = run_of_opt();
  run.use_padded_documents();

  expect_same(run, {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
}

TEST(OptLayouts, KeepDocumentsApart) {
  TinyRun run = run_of_opt();
  run.use_separate_documents();

  expect_same(run, {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
}

TEST(OptLayouts, LieOnGridsWhereEmbeddingsAreNotNarrow) {
  TinyRun run = run_of_opt();
  run.set("model.embedding_size", "32").use_padded_documents();

  expect_same(run,
              {{.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(OptLayouts, RefuseGridsWhereEmbeddingsAreNarrow) {
  EXPECT_THROW((void)run_of_opt().train({.ranks = 4, .tensor = 4, .mode = "2d"}, 1),
               std::exception);
}

TEST(OptLayouts, TrainThroughAPipelineAndZeroToTheBit) {
  expect_same_through_pipeline_and_zero(run_of_opt());
}

TEST(OptLayouts, ReadEachOthersCheckpoints) {
  expect_checkpoints_read_by_all(run_of_opt(),
                                 {{.ranks = 1, .accumulation = 2, .stage = 0},
                                  {.ranks = 2, .accumulation = 2, .tensor = 2},
                                  {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST(GptNeoxLayouts, CutHeadsAndFeatures) {
  expect_same(run_of_neox(),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST(GptNeoxLayouts, LieOnGrids) {
  expect_same(run_of_neox(),
              {{.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(GptNeoxLayouts, ShareTokens) {
  expect_same(run_of_neox(),
              {{.ranks = 2, .context = 2}, {.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
}

TEST(GptNeoxLayouts, TrainThroughAPipelineAndZeroToTheBit) {
  expect_same_through_pipeline_and_zero(run_of_neox());
}

TEST(GptNeoxLayouts, RecomputeChangesNothing) {
  for (const char* kind : {"full", "selective"}) {
    TinyRun run = run_of_neox();
    const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
    const Trace stored = run.train(layout, 3);
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

}  // namespace
}  // namespace tessera::test
