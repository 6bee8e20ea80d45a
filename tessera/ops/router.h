// SPDX-License-Identifier: Apache-2.0
// The router of a sparse feed-forward network: from the logits of a token it chooses experts and
// computes their weights. Legend: N tokens, E experts, K experts that a token uses.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/ops/sinkhorn.h"

namespace tessera::ops {

/// The function of the logits from which weights are computed.
enum class RouterScore : std::uint8_t {
  Softmax,     ///< over all experts; with `normalize` it is the softmax over the chosen ones
  Sigmoid,     ///< of each logit
  SparseMixer  ///< PhiMoE, without its random sampling: softmax over the logits near the best; K 2
};
/// How groups of experts are ranked (DeepSeek).
enum class GroupRank : std::uint8_t {
  Best,    ///< by the best score (V2)
  BestTwo  ///< by the sum of the two best scores, with the correction (V3)
};

/// How a token's experts are chosen from the scores.
enum class RouterChoice : std::uint8_t {
  Best,     ///< those of the largest scores, plus the correction
  Sinkhorn  ///< those of the largest scores after sinkhorn_shifts(), which needs no balance loss
};

struct RouterSpec {
  std::int64_t top_k = 2;  ///< K
  RouterScore score = RouterScore::Softmax;
  /// Divides the K weights of a token by their sum plus `normalize_eps`. Mixtral always does;
  /// gpt_oss and Granite compute the softmax over the chosen experts, which is the same.
  bool normalize = false;
  double normalize_eps = 0.0;   ///< 1e-20 in DeepSeek V3
  double scale = 1.0;           ///< multiplies the weights: routed_scaling_factor
  std::int64_t groups = 1;      ///< n_group: groups of neighbouring experts, of equal size
  std::int64_t top_groups = 1;  ///< topk_group: number of groups whose experts a token may use
  GroupRank group_rank = GroupRank::BestTwo;
  /// Sinkhorn is for training: other passes choose the best. Without groups and corrections.
  RouterChoice choice = RouterChoice::Best;
  double mixer_eps = 0.01;  ///< SparseMixer: router_jitter_noise
  bool bias = false;        ///< the logits have a bias (gpt_oss)
  /// A value for each expert, added to the scores for the choice but not for the weights
  /// (e_score_correction_bias).
  bool correction = false;
  /// Once a step, the correction of each expert with fewer tokens than the mean grows by this
  /// value, and that of each expert with more shrinks by it; 0: it keeps its values.
  double correction_rate = 0.0;
  /// The weights multiply the inputs of experts instead of their outputs (Llama 4).
  bool weighs_inputs = false;
};

/// The choices that an expert keeps at its capacity.
enum class DropRule : std::uint8_t {
  Position,    ///< the first tokens
  Choice,      ///< first choices before second ones, and of these the first tokens (DeepSpeed, K 2)
  Probability  ///< those with the largest weights; of equal ones the first tokens
};

/// The passes in which experts have a capacity.
enum class CapacityUse : std::uint8_t {
  Training,
  Evaluation,  ///< and training
  Always       ///< and generation
};

/// The largest number of tokens of a micro-batch, or of each of its samples, that an expert accepts
/// in the passes that `use` names. It adds nothing to the other tokens.
struct CapacitySpec {
  /// The capacity is ceil(N / E * factor * K), computed in fp32 as DeepSpeed does; 0: no
  /// limit, unless `tokens` is one.
  double factor = 0.0;
  std::int64_t tokens = 0;  ///< if not 0, this is the capacity instead (Switch)
  std::int64_t minimum = 0;
  DropRule drop = DropRule::Position;
  bool per_sample = false;  ///< the tokens of each sample have a capacity of their own (Switch)
  /// With RouterSpec::normalize, weights are divided by the sum over the choices that stay
  /// (DeepSpeed); else over all choices (Megatron-LM).
  bool normalize_after = false;
  CapacityUse use = CapacityUse::Training;
  [[nodiscard]] bool limits() const { return factor > 0.0 || tokens > 0; }
};

/// The result of a router for N tokens, on the CPU.
struct Choices {
  at::Tensor chosen_NK;   ///< int32, best first
  at::Tensor experts_NK;  ///< the same, with -1 for those that were dropped
  at::Tensor raw_NK;      ///< fp32: weights before they are normalized and scaled
  at::Tensor weights_NK;  ///< fp32; 0 where dropped
  /// fp32, for the terms of the loss: the softmax over all experts, or the sigmoids divided by
  /// their sum.
  at::Tensor scores_NE;
};

/// Chooses for each row of `logits_NE` (fp32, any device) the K experts of the largest scores; of
/// equal ones the lower expert. A row of the result depends on this row alone, except with
/// Sinkhorn's choice, for which `sum` sums over the ranks that share the tokens. `correction_E`
/// (fp32) is undefined without a correction. Throws Error{Shape} unless K is at most the number of
/// experts that may be chosen. Cost: O(N E K). Can be called from any thread; no autograd. On meta
/// it returns tensors on meta.
Choices choose_experts(const at::Tensor& logits_NE,
                       const at::Tensor& correction_E,
                       const RouterSpec& spec,
                       const SumOverRanks& sum = {});
/// The gradient of `logits_NE`, fp32, from the gradients of weights and scores, each of which may
/// be undefined. The choice itself is constant.
at::Tensor choose_experts_backward(const at::Tensor& dweights_NK,
                                   const at::Tensor& dscores_NE,
                                   const at::Tensor& logits_NE,
                                   const Choices& choices,
                                   const RouterSpec& spec,
                                   const CapacitySpec& capacity);

/// CapacitySpec's capacity for `tokens` tokens.
std::int64_t expert_capacity(std::int64_t tokens,
                             std::int64_t num_experts,
                             std::int64_t top_k,
                             const CapacitySpec& spec);
/// Drops the choices beyond the capacity: sets their experts to -1 and their weights to 0. The
/// tokens are `samples` samples of equal length. Returns the number of dropped choices.
std::int64_t drop_choices(Choices& choices,
                          const RouterSpec& spec,
                          const CapacitySpec& capacity,
                          std::int64_t num_experts,
                          std::int64_t samples);

}  // namespace tessera::ops
