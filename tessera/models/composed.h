// SPDX-License-Identifier: Apache-2.0
// A model that a configuration composes of parts: what is embedded, a stack of layers that reads,
// possibly a stack that writes, and the heads. Sources: Zhao et al. 2023, "TencentPretrain: a
// scalable and flexible toolkit for pre-training models of different modalities", whose names and
// parts these are; Vaswani et al. 2017, "Attention is all you need".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/norm.h"
#include "tessera/models/sizes.h"
#include "tessera/models/transformer_layer.h"
#include "tessera/models/trunk.h"

namespace tessera::models {

/// What a token's first vector is the sum of.
struct ComposedEmbedding {
  bool words = true;
  bool positions = true;             ///< a learned vector for each position
  bool segments = false;             ///< one for each token type: rows 1 and 2 of three
  std::int64_t position_offset = 0;  ///< row of the first position; above 0, padding has none
  bool norm = true;                  ///< the sum is normalized
};

/// How the tokens of a stack know their order besides the embedding.
enum class ComposedOrder : std::uint8_t {
  Embedding,  ///< not at all
  Relative,   ///< a learned bias of attention by distance, which all layers of a stack share
  Rotary      ///< channels 2 p and 2 p + 1 of queries and keys turn
};

/// Everything that fixes such a model. num_layers: of the stack that reads.
struct ComposedShape : Sizes {
  ComposedEmbedding embedding;
  ComposedOrder order = ComposedOrder::Embedding;
  bool causal = false;  ///< a token of the reading stack sees itself and those before it
  ResidualOrder residual = ResidualOrder::PostNorm;
  NormKind norm = NormKind::LayerNorm;
  double norm_eps = 1e-6;
  bool gated = false, bias = true, scale_attention = true;
  std::string activation = "gelu";
  std::int64_t head_dim = 32;
  std::int64_t buckets = 32, max_distance = 128;  ///< of relative positions
  double rope_theta = 10000.0;
  std::int64_t num_decoder_layers = 0;  ///< of the stack that writes; 0: there is none
  bool tie_embeddings = true;
  bool scale_output = false;  ///< the head reads hidden states / sqrt(hidden_size)
  /// Heads that have names of their own: masked tokens, whole samples ("sp" or "cls").
  bool masked_lm = false;
  std::string sample_head;
  std::int64_t start_token = 0, pad_token = 0;
  double dropout = 0.0, init_std = 0.02;
  [[nodiscard]] bool writes() const { return num_decoder_layers > 0; }
};

/// The blocks "embedding", "encoder.transformer.0" and so on, and with a decoder "encoder.final"
/// and "decoder.transformer_decoder.0" and so on. Names are TencentPretrain's, but that projections
/// of one input are one parameter: self_attn.qkv, context_attn.kv, and feed_forward.gated_linear
/// with the gate first.
Trunk composed_trunk(const ComposedShape& shape);

}  // namespace tessera::models
