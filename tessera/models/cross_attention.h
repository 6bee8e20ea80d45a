// SPDX-License-Identifier: Apache-2.0
// Attention of a decoder's tokens to an encoder's output for another sequence.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::models {

struct CrossAttentionSpec {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::string q_name, kv_name, output_name;  ///< names of the projections
  bool bias = false;                         ///< biases of all three projections
  Init q_init, kv_init, output_init;         ///< initial weights
  double dropout = 0.0;                      ///< dropout of attention probabilities
  double scale = 0.0;                        ///< see ops::AttentionArgs
};

/// Reads "attention_mask" of the batch, which belongs to the encoder's sequence. In Decode it uses
/// the keys and values from Prefill and does not read the encoder's output.
class CrossAttention {
 public:
  explicit CrossAttention(CrossAttentionSpec spec) : spec_(std::move(spec)) {}
  /// Declares `q_name`.weight [1, heads, head_dim, embed], `kv_name`.weight [2, heads, head_dim,
  /// embed] (keys first), `output_name`.weight [embed, heads * head_dim] and the biases.
  void declare(nn::Params& params);
  /// Maps normalized h [B, T, C] and the encoder's last hidden states [B, S, C] to the branch [B,
  /// T, C]. `block`: the block that contains this attention.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC,
                                      const at::Tensor& memory_BSC,
                                      const nn::Batch& batch,
                                      const nn::Block& block,
                                      nn::StepContext& context) const;

 private:
  /// Keys and values of the encoder's sequence, [B, H, S, K] each.
  struct Memory {
    at::Tensor k_BHSK, v_BHSK;
  };
  /// Memories of sequences of different lengths, by number; each has one sample.
  struct Memories {
    std::vector<Memory> texts;
  };
  [[nodiscard]] Memory made_of(const at::Tensor& memory_BSC, nn::StepContext& context) const;
  [[nodiscard]] Memory memory_of(const at::Tensor& memory_BSC,
                                 const nn::Block& block,
                                 nn::StepContext& context) const;
  /// Attention of each row to the encoded sequence that its sequence answers.
  [[nodiscard]] at::Tensor attend_by_text(const std::vector<std::size_t>& numbers,
                                          const at::Tensor& q_BHTK,
                                          const at::Tensor& memory_BSC,
                                          const ops::AttentionArgs& args,
                                          const nn::Block& block,
                                          nn::StepContext& context) const;

  CrossAttentionSpec spec_;
  Param* q_weight_ = nullptr;
  Param* kv_weight_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* q_bias_ = nullptr;
  Param* kv_bias_ = nullptr;
  Param* output_bias_ = nullptr;
};

}  // namespace tessera::models
