// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Llama trains on any ranks as on one: rotary positions, grouped queries and the gated MLP where
// ranks share layers, tokens and samples.
#include "tessera/models/llama.h"

#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

/// Two layers of four heads, two of keys and values, with the scaled rotary positions of Llama 3.
nn::Model tiny_llama(const models::Resolved& sizes) {
  models::LlamaShape shape;
  shape.num_layers = sizes.num_layers;
  shape.hidden_size = sizes.hidden_size;
  shape.num_heads = sizes.num_heads;
  shape.num_kv_heads = sizes.num_kv_heads;
  shape.ffn_hidden_size = 48;
  shape.vocab_size = sizes.vocab_size;
  shape.max_positions = sizes.max_positions;
  shape.rotation.scaling = {
      .kind = ops::RotaryScalingKind::Llama3, .factor = 4.0, .original_positions = 8};
  shape.attention_dropout = 0.1;
  return models::llama(shape);
}

TinyRun run_of_llama() {
  TinyRun run;
  return run.set("model.num_kv_heads", "2").use_model(tiny_llama);
}

TEST(LlamaLayouts, TrainTheParametersOfLlama) {
  std::vector<std::string> names;
  for (const auto& [name, values] : run_of_llama().first_gradient({}))
    names.push_back(name);

  EXPECT_EQ(names.size(), 1U + 2 * 6 + 2);
  EXPECT_THAT(names, ::testing::Contains("layers.1.mlp.gate_up_proj.weight"));
}

TEST(LlamaLayouts, CutHeadsAndFeatures) {
  expect_same(run_of_llama(),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST(LlamaLayouts, LieOnGrids) {
  expect_same(run_of_llama(),
              {{.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

// Each rank rotates queries and keys by the positions of its own tokens.
TEST(LlamaLayouts, ShareTokens) {
  expect_same(run_of_llama(),
              {{.ranks = 2, .context = 2},
               {.ranks = 2, .context = 2, .context_mode = "ulysses"},
               {.ranks = 8, .stage = 2, .tensor = 2, .context = 2}});
}

// Positions of separate documents differ from sample to sample.
TEST(LlamaLayouts, KeepDocumentsApart) {
  TinyRun run = run_of_llama();
  run.use_separate_documents();

  expect_same(run,
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .context = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(LlamaLayouts, TrainThroughAPipelineAndZeroToTheBit) {
  const TinyRun run = run_of_llama();
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

TEST(LlamaLayouts, RecomputeChangesNothing) {
  for (const char* kind : {"full", "selective"}) {
    TinyRun run = run_of_llama();
    const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
    const Trace stored = run.train(layout, 3);
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

TEST(LlamaLayouts, ReadEachOthersCheckpoints) {
  expect_checkpoints_read_by_all(run_of_llama(),
                                 {{.ranks = 1, .accumulation = 2, .stage = 0},
                                  {.ranks = 2, .accumulation = 2, .tensor = 2},
                                  {.ranks = 4, .stage = 3, .tensor = 2}});
}

TEST(LlamaLayouts, WriteTheSameText) {
  TinyRun run = run_of_llama();
  run.set("eval.prompt", "\"the cat \"").set("eval.max_new_tokens", "30");
  const std::string one = run.sample({.ranks = 1});

  ASSERT_GT(one.size(), 12U);
  EXPECT_EQ(run.sample({.ranks = 2, .tensor = 2}), one);
  EXPECT_EQ(run.sample({.ranks = 4, .pipeline = "2", .tensor = 2}), one);
}

}  // namespace
}  // namespace tessera::test
