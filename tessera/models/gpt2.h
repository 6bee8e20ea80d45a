// SPDX-License-Identifier: Apache-2.0
// The GPT-2 family: learned positions, pre-norm blocks, GELU, tied head.  Source: Radford et al.
// 2019.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// `model` of the configuration, as the user wrote it.
struct ModelOptions {
  std::string family = "gpt2";
  std::optional<std::string> preset;
  std::optional<std::int64_t> num_layers, hidden_size, num_heads, num_kv_heads, vocab_size,
      max_positions, ffn_hidden_size;
  double dropout = 0.0;
  std::optional<double> embedding_dropout, attention_dropout, residual_dropout;
  bool qkv_bias = true;
  bool tie_embeddings = true;
  std::string activation = "gelu_tanh";
  double layer_norm_eps = 1e-5;
  double mlp_ratio = 4.0;
  double init_std = 0.02;
  double label_smoothing = 0.0;
  std::optional<std::string> from;
  void describe(config::Fields& fields);
};

/// Everything that fixes a GPT-2: options with presets and files resolved.
struct Gpt2Shape {
  std::int64_t num_layers = 4, hidden_size = 128, num_heads = 4, vocab_size = 256,
               max_positions = 1024, ffn_hidden_size = 512;
  std::int64_t num_kv_heads = 0;  ///< 0: num_heads
  double embedding_dropout = 0.0, attention_dropout = 0.0, residual_dropout = 0.0;
  bool qkv_bias = true, tie_embeddings = true;
  std::string activation = "gelu_tanh";
  double layer_norm_eps = 1e-5, init_std = 0.02, label_smoothing = 0.0;
  std::int64_t tokenizer_size = 0;  ///< ids at and above are never generated; 0: all may be
  [[nodiscard]] std::int64_t kv_heads() const {
    return num_kv_heads > 0 ? num_kv_heads : num_heads;
  }
  [[nodiscard]] std::int64_t num_parameters() const;
};

/// The blocks "wte" (embedding) and "h.0", "h.1", ... Parameter names are Hugging Face's without
/// "transformer.": wte.weight, wpe.weight, h.N.ln_1.weight, h.N.attn.c_attn.weight [3, heads,
/// head_dim, embed] (where heads share keys and values: [kv_heads, heads / kv_heads + 2, head_dim,
/// embed]), h.N.attn.c_proj.weight [embed, heads * head_dim], h.N.mlp.c_fc.weight, ...
Trunk gpt2_trunk(const Gpt2Shape& shape);
/// The trunk with the objective causal_lm as the block "head": ln_f.weight, ln_f.bias and, untied
/// only, lm_head.weight.
nn::Model gpt2(const Gpt2Shape& shape);

}  // namespace tessera::models
