// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Llama with the scaled rotary positions of Llama 3 trains on grids of eight ranks, with documents
// apart, and writes texts, as on one rank. Other layouts: family_layouts_test.cpp.
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

TEST(LlamaLayouts, HaveTheParametersOfLlama) {
  std::vector<std::string> names;
  for (const auto& [name, values] : run_of_llama().first_gradient({}))
    names.push_back(name);

  EXPECT_EQ(names.size(), 1U + 2 * 6 + 2);
  EXPECT_THAT(names, ::testing::Contains("layers.1.mlp.gate_up_proj.weight"));
}

TEST(LlamaLayouts, TrainOnGridsOfEightRanks) {
  expect_same(run_of_llama(),
              {{.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
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
