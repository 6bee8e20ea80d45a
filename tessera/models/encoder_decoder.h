// SPDX-License-Identifier: Apache-2.0
// An encoder-decoder model: RMS norms before each branch, no positions except a learned attention
// bias by distance, no other biases. A family consists of this with options, presets and names.
// Source: Raffel et al. 2020, "Exploring the limits of transfer learning with a unified
// text-to-text transformer".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/experts_spec.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/ops/relative_position.h"

namespace tessera::models {

/// Experts instead of the MLP in some layers of one stack.
struct StackExperts {
  ExpertsSpec spec;
  std::vector<bool> sparse;  ///< for each layer
};

/// The complete shape of such a model. num_layers counts the encoder's layers.
struct EncoderDecoderShape : Sizes {
  std::int64_t num_decoder_layers = 4;
  std::int64_t head_dim = 32;
  std::int64_t buckets = 32, max_distance = 128;  ///< see ops::RelativeBuckets
  std::string activation = "relu";
  bool gated = false;  ///< the MLP has a gate
  bool tie_embeddings = true;
  bool scale_output = true;  ///< divides the head's input by sqrt(hidden_size)
  double dropout = 0.0;
  /// Dropout acts on attention weights and outputs of branches alone; false: also on the
  /// embeddings, between the projections of MLPs, and on the last hidden states of both stacks.
  bool drops_only_branches = false;
  [[nodiscard]] double outer_dropout() const { return drops_only_branches ? 0.0 : dropout; }
  double rms_norm_eps = 1e-6;
  double init_factor = 1.0;  ///< factor of the initial standard deviations
  std::int64_t start_token = 0, pad_token = 0;
  std::optional<StackExperts> encoder_experts, decoder_experts;
  /// Includes a language-model head.
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] std::int64_t inactive_parameters() const;  ///< those that one token does not use
};

/// The blocks "shared" (the token table of both sequences), "encoder.block.0" and so on,
/// "encoder.final" (the encoder's last norm), and "decoder.block.0" and so on. The flow between
/// encoder blocks has the hidden states and the embedded target; between decoder blocks it has the
/// hidden states and the encoder's output. In training, the sums of a balance term over the layers
/// of a stack follow them within that stack. Names are Hugging Face's; projections of the same
/// input are one parameter: shared.weight, encoder.block.N.layer.0.SelfAttention.qkv.weight [3,
/// heads, head_dim, embed], .o.weight [embed, heads * head_dim], .layer.0.layer_norm.weight,
/// .layer.1.DenseReluDense.wi.weight [ffn, embed] or [2, ffn, embed] with the gate first,
/// .wo.weight [embed, ffn], .layer.1.layer_norm.weight; the decoder has
/// .layer.1.EncDecAttention.q.weight [1, heads, head_dim, embed], .kv.weight [2, heads, head_dim,
/// embed], .o.weight, and its MLP as layer.2; encoder.final_layer_norm.weight, and
/// {encoder,decoder}.block.0.layer.0.SelfAttention.relative_attention_bias.weight [buckets, heads],
/// which every layer of the stack shares. The parameters of experts are named by their
/// specification.
Trunk encoder_decoder_trunk(const EncoderDecoderShape& shape);

}  // namespace tessera::models
