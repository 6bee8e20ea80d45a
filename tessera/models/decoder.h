// SPDX-License-Identifier: Apache-2.0
// The decoder that most families since LLaMA share: RMS norms, rotary positions, heads that may
// share keys and values, and a gated MLP or experts. A family consists of this block with options,
// presets and names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/expert_attention.h"
#include "tessera/models/experts_spec.h"
#include "tessera/models/latent_attention.h"
#include "tessera/models/rotary_options.h"
#include "tessera/models/self_attention.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"

namespace tessera::models {

/// The settings that may differ between the layers of a model.
struct DecoderLayerKind {
  std::int64_t window = 0;    ///< attention window in tokens; 0: all earlier tokens
  std::int64_t chunk = 0;     ///< attention within chunks of so many tokens; 0: no chunks
  bool rotary = true;         ///< queries and keys have rotary positions
  bool local_rotary = false;  ///< the rotation is DecoderShape::local_rotation
  bool sparse = false;        ///< the feed-forward network is DecoderShape::experts
};

/// The complete shape of a decoder.
struct DecoderShape : Sizes {
  DecoderShape() {
    num_layers = 4;
    ffn_hidden_size = 352;
    max_positions = 2048;
  }
  std::int64_t head_dim = 0;  ///< 0: hidden_size / num_heads
  Rotation rotation, local_rotation;
  double rotary_share = 1.0;  ///< share of a head's channels that are rotated
  bool rotary_interleaved = false;
  bool attention_bias = false;      ///< biases of the query, key and value projections
  bool output_bias = false;         ///< bias of attention's output projection
  bool mlp_bias = false;            ///< biases of the three projections of the MLP
  bool tie_embeddings = false;      ///< tie_word_embeddings
  std::string activation = "silu";  ///< hidden_act
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;
  double classifier_dropout = kClassifierDropout;
  double rms_norm_eps = 1e-6;
  double norm_offset = 0.0;      ///< added to the weights of norms: 1 in Gemma
  bool layer_norms = false;      ///< norms subtract the mean (PhiMoE, DBRX)
  bool norm_bias = false;        ///< biases of such norms
  double embedding_scale = 0.0;  ///< factor of the embeddings, rounded to their dtype; 0: none
  double branch_factor = 1.0;    ///< factor of the outputs of attention and of the MLP (Granite)
  double state_factor = 1.0;     ///< factor of the last hidden states: 1 / logits_scaling (Granite)
  double attention_scale = 0.0;  ///< factor of the scores; 0: 1 / sqrt(head_dim)
  double score_softcap = 0.0;    ///< soft cap of attention scores; 0: none
  double logit_softcap = 0.0;    ///< soft cap of the logits; 0: none
  double qkv_clip = 0.0;         ///< bound of queries, keys and values; 0: none
  bool sinks = false;            ///< each head has an attention sink
  bool head_bias = false;        ///< bias of the language-model head
  /// Latent attention instead of attention with num_kv_heads and head_dim.
  std::optional<LatentChannels> latent;
  /// Each choice of a token's experts has its own queries and output projection (JetMoE);
  /// num_heads is num_kv_heads * top_k.
  bool expert_attention = false;
  bool norms_rotated = false;  ///< RMS norms without weights of rotated queries and keys
  /// The factor of queries by their position, in layers without rotary positions.
  std::optional<nn::Temperature> temperature;
  QkNorm qk_norm = QkNorm::None;
  /// Names of the norms at the four places of a layer; empty: no norm there.
  std::string norm_before_attention = "input_layernorm", norm_after_attention,
              norm_before_mlp = "post_attention_layernorm", norm_after_mlp;
  std::vector<DecoderLayerKind> layers;  ///< one per layer, or empty if all have the defaults
  std::optional<ExpertsSpec> experts;    ///< the feed-forward network of sparse layers
  double init_std = 0.02;                ///< initializer_range
  [[nodiscard]] std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_heads;
  }
  /// Number of rotated channels per head; even.
  [[nodiscard]] std::int64_t rotary_channels() const;
  /// Includes a language-model head.
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] std::int64_t inactive_parameters() const;  ///< those that one token does not use
  [[nodiscard]] std::int64_t num_sparse_layers() const;
};

/// The blocks "embed_tokens" and "layers.0", "layers.1", ... Parameter names are Hugging Face's
/// without "model."; projections of the same input are one parameter: embed_tokens.weight,
/// layers.N.input_layernorm.weight, layers.N.self_attn.qkv_proj.weight [kv_heads, heads / kv_heads
/// + 2, head_dim, embed] (if heads do not share keys and values: [3, heads, head_dim, embed]),
/// layers.N.self_attn.o_proj.weight [embed, heads * head_dim],
/// layers.N.post_attention_layernorm.weight, layers.N.mlp.gate_up_proj.weight [2, ffn, embed] (gate
/// first), layers.N.mlp.down_proj.weight [embed, ffn], and the biases and norms of the shape.
/// Sparse layers have the parameters of ExpertsSpec instead of the MLP's.
Trunk decoder_trunk(const DecoderShape& shape);

}  // namespace tessera::models
