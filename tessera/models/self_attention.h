// SPDX-License-Identifier: Apache-2.0
// Self-attention for model families: a fused projection to queries, keys and values, attention, and
// a projection back to the residual stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/relative_position.h"

namespace tessera::models {

/// A norm of queries and keys, before rotation.
enum class QkNorm : std::uint8_t {
  None,
  PerHead,   ///< RMS, over the channels of each head, with one weight for all heads (Qwen 3, Gemma
             ///< 3)
  AllHeads,  ///< RMS, over the channels of all heads together (OLMo 2)
  /// A layer norm over the channels of each head, with one weight and one bias for all heads
  /// (Megatron-LM).
  LayerPerHead
};

/// A table [buckets, heads] that all layers of a stack share, as a tied parameter.
struct RelativeBiasSpec {
  std::string name;  ///< global name of the parameter
  ops::RelativeBuckets buckets;
  Init init;
};

struct SelfAttentionSpec {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  ///< heads of keys and values; must divide num_heads
  std::int64_t head_dim = 0;
  /// Names of the two projections: "attn.c_attn", "attn.c_proj".
  std::string qkv_name, output_name;
  bool qkv_bias = false, output_bias = false;
  Init qkv_init, output_init;  ///< initial weights
  double dropout = 0.0;        ///< dropout of attention probabilities
  /// A token attends to itself and earlier tokens; false: to all tokens.
  bool causal = true;
  /// Rotary position embedding of queries and keys, for at most `max_positions` tokens: the angle
  /// in radians per token for each pair of channels, as ops::rotary_frequencies() returns them.
  /// Empty: none.
  std::vector<double> rotary_frequencies;
  std::int64_t max_positions = 0;
  bool rotary_interleaved = false;  ///< rotates channels 2 p and 2 p + 1 as a pair
  double rotary_factor = 1.0;       ///< ops::rotary_attention_factor()
  /// RMS norms without weights of queries and keys, after rotation (Llama 4).
  bool norms_rotated = false;
  /// Multiplies queries by a factor that grows with the position.
  std::optional<nn::Temperature> temperature = {};
  // See ops::AttentionArgs.
  std::int64_t window = 0, chunk = 0;
  double scale = 0.0, softcap = 0.0;
  bool alibi = false;  ///< adds ops::alibi_slopes() to the scores
  /// Adds a learned bias by the distance of the tokens to the scores.
  std::optional<RelativeBiasSpec> relative_bias = {};
  /// Number of tokens of every sample if ranks may have to pad them, see nn::padded_attention(); 0:
  /// ranks that share or split the tokens divide them.
  std::int64_t sample_tokens = 0;
  /// Tensor of the batch that is 0 where a key is padding.
  std::string mask_name = "attention_mask";
  QkNorm qk_norm = QkNorm::None;
  double qk_norm_eps = 1e-6;
  double qk_norm_offset = 0.0;  ///< added to the weights of these norms
  std::string q_norm_name = "self_attn.q_norm", k_norm_name = "self_attn.k_norm";
  /// Name of a vector with an attention sink for each head (nn/sink_attention.h); empty: none. Only
  /// for causal attention.
  std::string sinks_name = {};
  double qkv_clip = 0.0;  ///< bound of queries, keys and values, after these norms; 0: none
};

/// Reads the mask and "document_starts" of the batch, and uses the KV cache of its block.
class SelfAttention {
 public:
  explicit SelfAttention(SelfAttentionSpec spec);
  /// Declares `qkv_name`.weight in the layout of nn::project_qkv(), `output_name`.weight [embed,
  /// heads * head_dim], and the biases, norms and table of the specification.
  void declare(nn::Params& params);
  /// Maps normalized h [B, T, C] to the branch [B, T, C]. `block`: the block that contains this
  /// attention.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC,
                                      const nn::Batch& batch,
                                      const nn::Block& block,
                                      nn::StepContext& context) const;

 private:
  void declare_norms(nn::Params& params);
  /// Normalizes and rotates queries and keys.
  void prepare(nn::Qkv& qkv, const nn::Batch& batch, nn::StepContext& context) const;
  [[nodiscard]] at::Tensor attend(const nn::Qkv& qkv,
                                  ops::AttentionArgs args,
                                  const nn::Batch& batch,
                                  const nn::Block& block,
                                  nn::StepContext& context) const;

  SelfAttentionSpec spec_;
  Param* qkv_weight_ = nullptr;
  Param* qkv_bias_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* output_bias_ = nullptr;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Param* q_norm_bias_ = nullptr;
  Param* k_norm_bias_ = nullptr;
  Param* relative_bias_ = nullptr;
  Param* sinks_ = nullptr;
  std::vector<double> alibi_;
};

/// For each token, the position at which its document starts in the sample; undefined if a sample
/// is one document.
at::Tensor document_starts(const nn::Batch& batch);

}  // namespace tessera::models
