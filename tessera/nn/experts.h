// SPDX-License-Identifier: Apache-2.0
// The differentiable parts of a sparse feed-forward network: the router, the experts, and the terms
// that balance them. Legend: B batch, T tokens, N = B T, C channels, F width of an expert, E
// experts, K experts that a token uses.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/balance.h"
#include "tessera/nn/block.h"
#include "tessera/nn/expert_load.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/router.h"

namespace tessera::nn {

/// The parameters of a sparse network; pointers may be null where there is no such parameter.
struct ExpertWeights {
  Param* router = nullptr;       ///< [E, C]
  Param* router_bias = nullptr;  ///< [E]
  Param* correction = nullptr;   ///< [E], not trainable
  Param* input = nullptr;        ///< [E, 2, F, C] with the gate first, or [E, F, C]
  Param* input_bias = nullptr;   ///< [E, 2, F] or [E, F]
  Param* output = nullptr;       ///< [E, C, F]
  Param* output_bias = nullptr;  ///< [E, C]
};
/// The activation between the projections of an expert.
struct ExpertForm {
  ops::Activation activation = ops::Activation::Silu;
  bool gated = true;
  double clamp = 0.0;  ///< limit of gpt_oss's activation, which is used instead; 0: not used
};

/// The choices of one micro-batch.
struct Routed {
  ops::Choices choices;
  std::int64_t dropped = 0;  ///< choices
  at::Tensor weights_NK;     ///< choices.weights_NK with its gradient
  at::Tensor scores_NE;      ///< choices.scores_NE with its gradient
  at::Tensor logits_NE;      ///< fp32, with its gradient
};
/// Computes the logits of h [B, T, C] in fp32 and chooses experts. `capacity` drops choices in the
/// passes that it names. A recomputed forward makes the same choices, because it has the same
/// logits.
Routed route(const at::Tensor& h_BTC,
             const ExpertWeights& weights,
             const ops::RouterSpec& spec,
             const ops::CapacitySpec& capacity,
             StepContext& context);
/// The choices of a rank without tokens.
Routed route_nothing(std::int64_t num_experts, std::int64_t top_k);

/// The weighted sum of the outputs of each token's experts, [B, T, C] or [N, C]. The products of an
/// expert with the tokens of one micro-batch are the same wherever the expert is, and the gradients
/// of its weights are one slice for each micro-batch: the result does not depend on the number of
/// ranks that divide the experts. Sums over choices are in fp32 in the order of the choices. `load`
/// counts them and may be null.
at::Tensor apply_experts(const at::Tensor& h_BTC,
                         const Routed& routed,
                         const ExpertWeights& weights,
                         const ExpertForm& form,
                         bool weighs_inputs,
                         ExpertLoad* load,
                         StepContext& context);

/// Multiplies the row of each choice by the matrix [O, I] of its expert: x [N, 1, I], the same for
/// all choices of a token, or [N, K, I] -> [N, K, O]. `weight` [E, O, I]. Bits and gradients are as
/// those of apply_experts(). No choice may be dropped.
at::Tensor project_by_expert(const at::Tensor& x,
                             const Routed& routed,
                             const Param& weight,
                             StepContext& context);
/// The weighted sum of a value for each choice, [N, K, C] -> [N, C], in fp32 in the order of the
/// choices.
at::Tensor sum_of_choices(const at::Tensor& y_NKC, const Routed& routed);

/// y * sigmoid(gate) for y [B, T, C] and gate [B, T, 1].
at::Tensor sigmoid_gate(const at::Tensor& y_BTC, const at::Tensor& gate_BT1);

/// Appends the terms of `spec` for the tokens of one layer and micro-batch, named "balance",
/// "sequence_balance" and "router_z"; without the balance over layers. Tokens with 0 in the batch's
/// attention_mask do not count.
void add_balance_terms(const Routed& routed,
                       const BalanceSpec& spec,
                       StepContext& context,
                       std::vector<Term>& terms);

/// The sums of a balance term over the tokens of several layers, for G groups of tokens: the
/// micro-batch, or its samples. They pass from layer to layer.
struct PooledBalance {
  at::Tensor scores_GE;  ///< fp32, differentiable: [G, E]
  at::Tensor counts_GE;  ///< fp64: choices of each expert, and the number of tokens: [G, E + 1]
};
/// The sums before the first layer.
PooledBalance no_balance(std::int64_t groups, std::int64_t num_experts, at::Device device);
/// Adds the sums of one layer.
PooledBalance add_to_pool(const PooledBalance& sums,
                          const Routed& routed,
                          const BalanceSpec& spec,
                          StepContext& context);
/// Appends the term of all layers, "balance" or "sequence_balance".
void add_pooled_term(const PooledBalance& sums,
                     const BalanceSpec& spec,
                     std::int64_t top_k,
                     std::vector<Term>& terms);

}  // namespace tessera::nn
