// SPDX-License-Identifier: Apache-2.0
// A model that a configuration composes from parts: embeddings, a stack of layers that reads
// (encoder), optionally a stack that writes (decoder), and heads. Sources: Zhao et al. 2023,
// "TencentPretrain: a scalable and flexible toolkit for pre-training models of different
// modalities", from which names and parts are taken; Vaswani et al. 2017, "Attention is all you
// need".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/norm.h"
#include "tessera/models/patch_embedding.h"
#include "tessera/models/sizes.h"
#include "tessera/models/transformer_layer.h"
#include "tessera/models/trunk.h"

namespace tessera::models {

/// The summands of a token's embedding.
struct ComposedEmbedding {
  bool words = true;
  bool patches = false;   ///< tokens are patches of an image, after a class token
  bool positions = true;  ///< a learned vector per position
  bool segments = false;  ///< a vector per token type: rows 1 and 2 of three
  /// Row of the first position; if above 0, padding has no position.
  std::int64_t position_offset = 0;
  bool norm = true;  ///< the sum is normalized
};

/// The source of the order of a stack's tokens, in addition to the embedding.
enum class ComposedOrder : std::uint8_t {
  Embedding,  ///< not at all
  Relative,   ///< a learned attention bias by distance, shared by all layers of a stack
  Rotary      ///< rotary positions on channels 2 p and 2 p + 1 of queries and keys
};

/// The complete shape of such a model. num_layers counts the layers of the reading stack.
struct ComposedShape : Sizes {
  ComposedEmbedding embedding;
  ComposedOrder order = ComposedOrder::Embedding;
  bool causal = false;  ///< a token of the reading stack attends only to itself and earlier tokens
  /// With `causal`: tokens of a sample's prefix attend to the whole prefix. The prefix is the first
  /// segment.
  bool prefix = false;
  ResidualOrder residual = ResidualOrder::PostNorm;
  NormKind norm = NormKind::LayerNorm;
  double norm_eps = 1e-6;
  bool gated = false, bias = true, scale_attention = true;
  std::string activation = "gelu";
  std::int64_t head_dim = 32;
  std::int64_t buckets = 32, max_distance = 128;  ///< for relative positions
  double rope_theta = 10000.0;
  std::int64_t rotary_channels = 0;     ///< of a head, the first ones; 0: all
  std::int64_t num_decoder_layers = 0;  ///< layers of the writing stack; 0: none
  bool qk_norm = false;           ///< norms of each head's queries and keys, of the kind `norm`
  bool shared_positions = false;  ///< the writing stack has the positions of the reading one
  bool tie_embeddings = true;
  bool scale_output = false;  ///< divides the head's input by sqrt(hidden_size)
  /// Heads with names of their own: masked tokens, pairs of texts ("sp"), whole samples ("sp" or
  /// "cls").
  bool masked_lm = false, pair_head = false;
  bool lm_bias = false;  ///< the logits of the next token have a bias
  std::string sample_head;
  bool pooler = true;  ///< the head of whole samples begins with a linear layer and tanh
  std::int64_t image_size = 224, patch_size = 16, num_channels = 3;  ///< with patches
  std::int64_t start_token = 0, pad_token = 0;
  double dropout = 0.0, init_std = 0.02;
  [[nodiscard]] bool writes() const { return num_decoder_layers > 0; }
};

/// The patches of a model of images; their number needs no other member of `shape`.
PatchSpec patches_of(const ComposedShape& shape);

/// The blocks "embedding", "encoder.transformer.0" and so on, and with a decoder "encoder.final"
/// and "decoder.transformer_decoder.0" and so on. Names are TencentPretrain's, except that
/// projections of the same input are one parameter: self_attn.qkv, context_attn.kv, and
/// feed_forward.gated_linear with the gate first.
/// Precondition: a model of patches has neither words, segments nor a writing stack.
Trunk composed_trunk(const ComposedShape& shape);

}  // namespace tessera::models
