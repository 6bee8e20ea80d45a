// SPDX-License-Identifier: Apache-2.0
// An encoder that reads a text and a decoder that writes another: RMS norms before each branch,
// attention without positions but for a learned bias by distance, no biases elsewhere. A family is
// this with switches, its presets, and its names. Source: Raffel et al. 2020, "Exploring the limits
// of transfer learning with a unified text-to-text transformer".
#pragma once

#include <cstdint>
#include <string>

#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/ops/relative_position.h"

namespace tessera::models {

/// Everything that fixes such a model. num_layers: of the encoder.
struct EncoderDecoderShape : Sizes {
  std::int64_t num_decoder_layers = 4;
  std::int64_t head_dim = 32;
  std::int64_t buckets = 32, max_distance = 128;  ///< of ops::RelativeBuckets
  std::string activation = "relu";
  bool gated = false;  ///< the MLP has a gate
  bool tie_embeddings = true;
  bool scale_output = true;  ///< the head reads hidden states / sqrt(hidden_size)
  double dropout = 0.0;
  double rms_norm_eps = 1e-6;
  double init_factor = 1.0;  ///< of the standard deviations of first weights
  std::int64_t start_token = 0, pad_token = 0;
  /// With a language-model head.
  [[nodiscard]] std::int64_t num_parameters() const;
};

/// The blocks "shared" (the table of both texts' tokens), "encoder.block.0" and so on,
/// "encoder.final" (its last norm), and "decoder.block.0" and so on. Between the encoder's blocks
/// run its hidden states and the embedded target, between the decoder's its hidden states and what
/// the encoder made. Names are Hugging Face's; projections of the same input are one parameter:
/// shared.weight, encoder.block.N.layer.0.SelfAttention.qkv.weight [3, heads, head_dim, embed],
/// .o.weight [embed, heads * head_dim], .layer.0.layer_norm.weight,
/// .layer.1.DenseReluDense.wi.weight [ffn, embed] or [2, ffn, embed] with the gate first,
/// .wo.weight [embed, ffn], .layer.1.layer_norm.weight; the decoder has
/// .layer.1.EncDecAttention.q.weight [1, heads, head_dim, embed], .kv.weight [2, heads, head_dim,
/// embed], .o.weight, and its MLP as layer.2; encoder.final_layer_norm.weight, and
/// {encoder,decoder}.block.0.layer.0.SelfAttention.relative_attention_bias.weight [buckets, heads],
/// which every layer of the stack shares.
Trunk encoder_decoder_trunk(const EncoderDecoderShape& shape);

}  // namespace tessera::models
