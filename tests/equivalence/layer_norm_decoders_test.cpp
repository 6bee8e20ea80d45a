// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// OPT and GPT-NeoX train on grids of eight ranks, and with padded and separate documents, as on one
// rank. Other layouts: family_layouts_test.cpp (rows opt, opt_narrow and gpt_neox).
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

TEST(OptLayouts, HaveTheParametersOfOpt) {
  std::vector<std::string> names;
  for (const auto& [name, values] : run_of_opt().first_gradient({}))
    names.push_back(name);

  EXPECT_EQ(names.size(), 2U + 2 + 2 * 12);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"project_in.weight", "project_out.weight"}));
}

// Positions count the tokens that are not padding, of all tokens of the sample.
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

TEST(OptLayouts, WithWideEmbeddingsTrainOnGrids) {
  TinyRun run = run_of_opt();
  run.set("model.embedding_size", "32").use_padded_documents();

  expect_same(run,
              {{.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(GptNeoxLayouts, TrainOnGridsOfEightRanks) {
  expect_same(run_of_neox(), {{.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

}  // namespace
}  // namespace tessera::test
