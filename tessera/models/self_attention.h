// SPDX-License-Identifier: Apache-2.0
// Self-attention as model families use it: a fused projection to queries, keys and values,
// attention, and a projection back to the residual stream.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {

struct SelfAttentionSpec {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  ///< heads of keys and values; divides num_heads
  std::int64_t head_dim = 0;
  std::string qkv_name, output_name;  ///< of the two projections: "attn.c_attn", "attn.c_proj"
  bool qkv_bias = false, output_bias = false;
  Init qkv_init, output_init;  ///< of the weights
  double dropout = 0.0;        ///< on attention probabilities
  bool causal = true;          ///< a token sees itself and the ones before it; false: all tokens
  /// Rotary position embedding of queries and keys, for at most `max_positions` tokens: radians a
  /// token of each pair of channels, as ops::rotary_frequencies() gives them. Empty: none.
  std::vector<double> rotary_frequencies;
  std::int64_t max_positions = 0;
  /// Whether scores fall with the distance of a key, with a slope for each head:
  /// ops::alibi_slopes().
  bool alibi = false;
};

/// Reads "attention_mask" and "document_starts" of the batch, and uses the KV cache of its block.
class SelfAttention {
 public:
  explicit SelfAttention(SelfAttentionSpec spec) : spec_(std::move(spec)) {}
  /// Declares `qkv_name`.weight in the layout of nn::split_qkv(), `output_name`.weight [embed,
  /// heads * head_dim], and the biases that the specification asks for.
  void declare(nn::Params& params);
  /// h [B, T, C], normalized -> the branch [B, T, C]. `block`: the one that it is part of.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC,
                                      const nn::Batch& batch,
                                      const nn::Block& block,
                                      nn::StepContext& context) const;

 private:
  SelfAttentionSpec spec_;
  Param* qkv_weight_ = nullptr;
  Param* qkv_bias_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* output_bias_ = nullptr;
};

/// The position of each token's document in the sample, or an undefined tensor where a sample is
/// one document.
at::Tensor document_starts(const nn::Batch& batch);

}  // namespace tessera::models
