// SPDX-License-Identifier: Apache-2.0
// The Llama family: rotary positions, grouped-query attention, RMSNorm, a gated MLP. Source:
// Touvron et al. 2023, "LLaMA"; grouped queries: Ainslie et al. 2023; Llama 3: Dubey et al. 2024.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"
#include "tessera/ops/rotary.h"

namespace tessera::models {

/// Everything that fixes a Llama.
struct LlamaShape : Sizes {
  LlamaShape() {
    num_layers = 4;
    ffn_hidden_size = 352;
    max_positions = 2048;
  }
  std::int64_t head_dim = 0;  ///< 0: hidden_size / num_heads
  double rope_theta = 10000.0;
  ops::RotaryScaling rope_scaling;
  bool attention_bias = false;      ///< of all four projections of attention
  bool mlp_bias = false;            ///< of all three projections of the MLP
  bool tie_embeddings = false;      ///< tie_word_embeddings
  std::string activation = "silu";  ///< hidden_act
  double attention_dropout = 0.0;
  double rms_norm_eps = 1e-6;
  double init_std = 0.02;  ///< initializer_range
  [[nodiscard]] std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_heads;
  }
  /// With a language-model head.
  [[nodiscard]] std::int64_t num_parameters() const;
};

/// The blocks "embed_tokens" and "layers.0", "layers.1", ... Parameter names are Hugging Face's
/// without "model."; projections of the same input are one parameter: embed_tokens.weight,
/// layers.N.input_layernorm.weight, layers.N.self_attn.qkv_proj.weight [kv_heads, heads / kv_heads
/// + 2, head_dim, embed] (where heads share no keys and values: [3, heads, head_dim, embed]),
/// layers.N.self_attn.o_proj.weight [embed, heads * head_dim],
/// layers.N.post_attention_layernorm.weight, layers.N.mlp.gate_up_proj.weight [2, ffn, embed] (gate
/// first), layers.N.mlp.down_proj.weight [embed, ffn], and the biases that the shape asks for.
Trunk llama_trunk(const LlamaShape& shape);
/// The trunk with the objective causal_lm as the block "head": norm.weight and, untied only,
/// lm_head.weight.
nn::Model llama(const LlamaShape& shape);

}  // namespace tessera::models
