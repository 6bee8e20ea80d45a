// SPDX-License-Identifier: Apache-2.0
// Attention with experts: a router chooses, for each token, experts of which each has its own
// projections to queries and back; keys and values are shared. Source: Shen et al. 2024, "JetMoE:
// reaching Llama2 performance with 0.1M dollars".
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/balance.h"
#include "tessera/nn/block.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/router.h"

namespace tessera::models {

struct ExpertAttentionSpec {
  std::int64_t hidden_size = 0;
  std::int64_t num_kv_heads = 0, head_dim = 0;
  std::int64_t num_experts = 0;
  /// A token's queries have num_kv_heads heads for each of its top_k experts. Without correction
  /// and bias.
  ops::RouterSpec router;
  nn::BalanceSpec balance;
  Init init;
  Init router_init;
  double dropout = 0.0;                    ///< dropout of attention probabilities
  std::vector<double> rotary_frequencies;  ///< radians per token of each pair of channels
  std::int64_t max_positions = 0;
  double rotary_factor = 1.0;  ///< of sines and cosines
};

/// Causal attention. Ranks of expert parallelism divide the experts; those of tensor parallelism
/// compute the same.
class ExpertAttention {
 public:
  explicit ExpertAttention(ExpertAttentionSpec spec);
  /// Number of parameters, of all and of one expert.
  static std::int64_t size_of(const ExpertAttentionSpec& spec);
  static std::int64_t size_of_expert(const ExpertAttentionSpec& spec);
  /// Declares, under "self_attn.": gate.weight [experts, embed], experts.q_proj.weight [experts,
  /// kv_heads * head_dim, embed], experts.o_proj.weight [experts, embed, kv_heads * head_dim],
  /// experts.bias [embed], kv_proj.weight [2 * kv_heads * head_dim, embed].
  void declare(nn::Params& params);
  /// Maps normalized h [B, T, C] to the branch [B, T, C]. `block`: the block that contains this
  /// attention. Appends terms of the loss; `sums` are those of a term over all layers, or nullptr.
  at::Tensor operator()(const at::Tensor& h_BTC,
                        const nn::Batch& batch,
                        const nn::Block& block,
                        nn::StepContext& context,
                        std::vector<nn::Term>& terms,
                        nn::PooledBalance* sums) const;
  /// As FeedForward::idle().
  at::Tensor idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const;

 private:
  /// The branch from the result of attention, y [N, K, channels].
  [[nodiscard]] at::Tensor output(const at::Tensor& y_NKO,
                                  const nn::Routed& routed,
                                  nn::StepContext& context) const;

  ExpertAttentionSpec spec_;
  nn::ExpertWeights weights_;  ///< the router, and input and output projections
  Param* kv_ = nullptr;
  Param* bias_ = nullptr;
};

}  // namespace tessera::models
