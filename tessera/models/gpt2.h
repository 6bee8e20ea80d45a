// SPDX-License-Identifier: Apache-2.0
// The GPT-2 family: learned positions, pre-norm blocks, GELU, tied head.  Source: Radford et al.
// 2019.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/experts_spec.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// The complete shape of a GPT-2, after presets and files are resolved.
struct Gpt2Shape : Sizes {
  double embedding_dropout = 0.0, attention_dropout = 0.0, residual_dropout = 0.0;
  double classifier_dropout = kClassifierDropout;  ///< in the head of token classification
  bool qkv_bias = true, tie_embeddings = true;
  /// Biases of all projections of the layers; false: none of them, whatever qkv_bias says.
  bool bias = true;
  bool gated = false;    ///< the MLP computes activation(gate) * up
  bool qk_norm = false;  ///< layer norms of each head's queries and keys
  std::string activation = "gelu_tanh";
  /// Attention scores are divided by the square root of the channels of a head; and those of layer
  /// i by i + 1 as well.
  bool scale_attention = true, scale_by_layer = false;
  double layer_norm_eps = 1e-5, init_std = 0.02, label_smoothing = 0.0;
  std::optional<ExpertsSpec> experts;  ///< the feed-forward network of sparse layers
  std::vector<bool> sparse;            ///< by layer; empty: none
  [[nodiscard]] bool is_sparse(std::int64_t layer) const {
    return !sparse.empty() && sparse.at(static_cast<std::size_t>(layer));
  }
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] std::int64_t inactive_parameters() const;  ///< those that one token does not use
};

/// The blocks "wte" (embedding) and "h.0", "h.1", ... Parameter names are Hugging Face's without
/// "transformer.": wte.weight, wpe.weight, h.N.ln_1.weight, h.N.attn.c_attn.weight [3, heads,
/// head_dim, embed] (if heads share keys and values: [kv_heads, heads / kv_heads + 2, head_dim,
/// embed]), h.N.attn.c_proj.weight [embed, heads * head_dim], h.N.mlp.c_fc.weight, ...
Trunk gpt2_trunk(const Gpt2Shape& shape);
/// The trunk with the objective causal_lm as the block "head": ln_f.weight, ln_f.bias and, only if
/// untied, lm_head.weight.
nn::Model gpt2(const Gpt2Shape& shape);

}  // namespace tessera::models
