// SPDX-License-Identifier: Apache-2.0
// The decoder that most families since LLaMA share: RMS norms, rotary positions, heads that may
// share keys and values, and a gated MLP. A family is this block with switches, its presets, and
// its names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/self_attention.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/ops/rotary.h"

namespace tessera::models {

/// The settings that may differ between the layers of a model.
struct DecoderLayerKind {
  std::int64_t window = 0;    ///< of its attention; 0: all tokens before
  bool rotary = true;         ///< queries and keys turn
  bool local_rotary = false;  ///< they turn at DecoderShape::local_rope_theta, without scaling
};

/// Everything that fixes a decoder.
struct DecoderShape : Sizes {
  DecoderShape() {
    num_layers = 4;
    ffn_hidden_size = 352;
    max_positions = 2048;
  }
  std::int64_t head_dim = 0;  ///< 0: hidden_size / num_heads
  double rope_theta = 10000.0;
  ops::RotaryScaling rope_scaling;
  double local_rope_theta = 10000.0;
  double rotary_share = 1.0;  ///< share of a head's channels that turn
  bool rotary_interleaved = false;
  bool attention_bias = false;      ///< of the projections to queries, keys and values
  bool output_bias = false;         ///< of attention's projection back
  bool mlp_bias = false;            ///< of all three projections of the MLP
  bool tie_embeddings = false;      ///< tie_word_embeddings
  std::string activation = "silu";  ///< hidden_act
  double attention_dropout = 0.0;
  double embedding_dropout = 0.0, residual_dropout = 0.0;
  double rms_norm_eps = 1e-6;
  double norm_offset = 0.0;      ///< what is added to the weights of norms: 1 in Gemma
  double embedding_scale = 0.0;  ///< of the embeddings, rounded to their dtype; 0: none
  double attention_scale = 0.0;  ///< of the scores; 0: 1 / sqrt(head_dim)
  double score_softcap = 0.0;    ///< of attention; 0: none
  double logit_softcap = 0.0;    ///< of the head; 0: none
  QkNorm qk_norm = QkNorm::None;
  /// Names of the norms at the four places of a layer; empty: there is none.
  std::string norm_before_attention = "input_layernorm", norm_after_attention,
              norm_before_mlp = "post_attention_layernorm", norm_after_mlp;
  std::vector<DecoderLayerKind> layers;  ///< one for each layer, or empty where all are default
  double init_std = 0.02;                ///< initializer_range
  [[nodiscard]] std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_heads;
  }
  /// Channels of a head that turn; even.
  [[nodiscard]] std::int64_t rotary_channels() const;
  /// With a language-model head.
  [[nodiscard]] std::int64_t num_parameters() const;
};

/// The blocks "embed_tokens" and "layers.0", "layers.1", ... Parameter names are Hugging Face's
/// without "model."; projections of the same input are one parameter: embed_tokens.weight,
/// layers.N.input_layernorm.weight, layers.N.self_attn.qkv_proj.weight [kv_heads, heads / kv_heads
/// + 2, head_dim, embed] (where heads share no keys and values: [3, heads, head_dim, embed]),
/// layers.N.self_attn.o_proj.weight [embed, heads * head_dim],
/// layers.N.post_attention_layernorm.weight, layers.N.mlp.gate_up_proj.weight [2, ffn, embed] (gate
/// first), layers.N.mlp.down_proj.weight [embed, ffn], and the biases and norms that the shape asks
/// for.
Trunk decoder_trunk(const DecoderShape& shape);

}  // namespace tessera::models
