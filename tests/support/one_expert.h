// SPDX-License-Identifier: Apache-2.0
// A decoder whose tokens all choose one expert.
#pragma once

#include <cstddef>
#include <string>

#include "support/train_runs.h"

#include "tessera/models/llama.h"

namespace tessera::test {

/// A router without weights, which is frozen, sends every token to the first expert.
inline nn::Model one_expert_for_all(const models::Resolved& sizes) {
  models::LlamaShape shape;
  shape.num_layers = sizes.num_layers;
  shape.hidden_size = sizes.hidden_size;
  shape.num_heads = sizes.num_heads;
  shape.num_kv_heads = sizes.num_kv_heads;
  shape.ffn_hidden_size = 48;
  shape.vocab_size = sizes.vocab_size;
  shape.max_positions = sizes.max_positions;
  models::ExpertsSpec experts = {
      .hidden_size = sizes.hidden_size, .ffn_hidden_size = 24, .num_experts = 5};
  experts.router.top_k = 1;
  experts.input_init = experts.output_init = Init::normal(0.02);
  shape.experts = experts;
  shape.layers.resize(static_cast<std::size_t>(sizes.num_layers), {.sparse = true});
  return models::llama(shape);
}

/// The same with experts in attention too, and two for each token: the first ones.
inline nn::Model two_experts_of_jetmoe(const models::Resolved& sizes) {
  models::LlamaShape shape;
  shape.num_layers = sizes.num_layers;
  shape.hidden_size = sizes.hidden_size;
  shape.num_heads = sizes.num_heads;
  shape.num_kv_heads = sizes.num_kv_heads;
  shape.ffn_hidden_size = 24;
  shape.vocab_size = sizes.vocab_size;
  shape.max_positions = sizes.max_positions;
  shape.expert_attention = true;
  models::ExpertsSpec experts = {
      .hidden_size = sizes.hidden_size, .ffn_hidden_size = 24, .num_experts = 5};
  experts.router.top_k = 2;
  experts.router.normalize = true;
  experts.input_init = experts.output_init = Init::normal(0.02);
  shape.experts = experts;
  shape.layers.resize(static_cast<std::size_t>(sizes.num_layers), {.sparse = true});
  return models::llama(shape);
}

/// Two layers with five experts, of which every token uses the first, in a model of width
/// `hidden`.
inline TinyRun run_with_one_expert(int hidden = 32) {
  TinyRun run;
  run.set("model",
          R"({"family": "llama", "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
              "ffn_hidden_size": 48, "max_positions": 16,
              "moe": {"num_experts": 5, "top_k": 1, "ffn_hidden_size": 24}, "hidden_size": )" +
              std::to_string(hidden) + "}")
      .set("optimizer.groups", R"([{"pattern": "mlp.gate.weight", "frozen": true}])")
      .use_model(one_expert_for_all);
  return run;
}

}  // namespace tessera::test
