// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention: keys and values are computed from one vector per token that is much
// narrower than both, and positions are in a separate part of the keys, which all heads share.
// Source: DeepSeek-AI 2024, "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts
// language model".
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/models/norm.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/rotary.h"

namespace tessera::models {

/// The channels of latent attention. A head's queries and keys have plain and rotary channels.
struct LatentChannels {
  std::int64_t query_rank = 0;  ///< width of the queries' latent vector; 0: queries have none
  std::int64_t rank = 0;        ///< width of the latent vector of keys and values
  std::int64_t plain = 0;       ///< channels of a head without positions
  std::int64_t rotary = 0;      ///< channels of a head with rotary positions; even
  std::int64_t values = 0;      ///< channels of a head's values
  [[nodiscard]] std::int64_t of_keys() const { return plain + rotary; }
};

struct LatentAttentionSpec {
  std::int64_t hidden_size = 0, num_heads = 0;
  LatentChannels channels;
  /// Biases of the projections to latent vectors and of the output projection.
  bool bias = false;
  Init init;
  double dropout = 0.0;                    ///< dropout of attention probabilities
  double norm_eps = 1e-6;                  ///< of the norms of latent vectors
  std::vector<double> rotary_frequencies;  ///< radians per token of each pair of rotary channels
  std::int64_t max_positions = 0;
  bool rotary_interleaved = true;  ///< channels 2 p and 2 p + 1 are a pair
  double rotary_factor = 1.0;      ///< of sines and cosines
  double scale = 0.0;              ///< of the scores; 0: 1 / sqrt(channels of a head's keys)
};

/// Causal attention. Ranks share its heads; the latent vectors are computed on each rank. In
/// generation the cache holds the latent vector and the rotated key of each token, which all heads
/// share: queries are projected to the latent vector instead of keys to heads. It holds keys and
/// values of every head where these are needed: with an adapter or 8-bit weights of kv_b_proj, and
/// where rows must have the bits of training (ops/batch_invariance.h).
class LatentAttention {
 public:
  explicit LatentAttention(LatentAttentionSpec spec)
      : spec_(std::move(spec)),
        query_norm_({.kind = NormKind::RmsNorm, .eps = spec_.norm_eps}),
        norm_({.kind = NormKind::RmsNorm, .eps = spec_.norm_eps}) {}
  /// Number of parameters.
  static std::int64_t size_of(const LatentAttentionSpec& spec);
  /// Declares, under "self_attn.": q_a_proj.weight [query_rank, embed], q_a_layernorm.weight and
  /// q_b_proj.weight [1, heads, key channels, query_rank], or without latent queries q_proj.weight
  /// [1, heads, key channels, embed]; kv_a_proj_with_mqa.weight [rank + rotary, embed],
  /// kv_a_layernorm.weight, kv_b_proj.weight [1, heads, plain + values, rank], o_proj.weight
  /// [embed, heads * values], and the biases.
  void declare(nn::Params& params);
  /// Maps normalized h [B, T, C] to the branch [B, T, C]. `block`: the block that contains this
  /// attention.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC,
                                      const nn::Batch& batch,
                                      const nn::Block& block,
                                      nn::StepContext& context) const;

 private:
  /// The values that all heads share: the normalized latent vector [B, T, R], and the rotated key
  /// [B, 1, T, K].
  struct Shared {
    at::Tensor latent_BTR, placed_B1TK;
  };
  /// What the cache holds of a token: [B, 1, T, R + rotary].
  static at::Tensor cached(const Shared& shared);
  [[nodiscard]] bool keeps_latents(const nn::StepContext& context) const;
  /// The result [B, H, T, values] from keys and values of each head.
  [[nodiscard]] at::Tensor by_head(const at::Tensor& q_BHTK,
                                   const Shared& shared,
                                   ops::AttentionArgs args,
                                   const nn::Block& block,
                                   nn::StepContext& context) const;
  /// The same from the latent vectors in the cache.
  [[nodiscard]] at::Tensor by_latent(const at::Tensor& q_BHTK,
                                     const Shared& shared,
                                     ops::AttentionArgs args,
                                     const nn::Block& block,
                                     nn::StepContext& context) const;
  [[nodiscard]] at::Tensor queries(const at::Tensor& h_BTC,
                                   const ops::RotaryTable& table,
                                   nn::StepContext& context) const;

  LatentAttentionSpec spec_;
  Norm query_norm_, norm_;
  Param* q_ = nullptr;    ///< to queries, from the latent vector or from the input
  Param* q_a_ = nullptr;  ///< to the latent vector of queries
  Param* q_a_bias_ = nullptr;
  Param* kv_a_ = nullptr;
  Param* kv_a_bias_ = nullptr;
  Param* kv_b_ = nullptr;
  Param* output_ = nullptr;
  Param* output_bias_ = nullptr;
};

}  // namespace tessera::models
