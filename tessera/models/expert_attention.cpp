// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/expert_attention.h"

#include <string>

#include <ATen/ATen.h>

#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/local_layers.h"

// Legend: B batch, T tokens, N = B T, C embed, E experts, J experts that a token uses, G heads of
// keys and values, K channels of a head, O = G K.
namespace tessera::models {

using enum LogicalAxis;

ExpertAttention::ExpertAttention(ExpertAttentionSpec spec) : spec_(std::move(spec)) {}

std::int64_t ExpertAttention::size_of_expert(const ExpertAttentionSpec& spec) {
  return 2 * spec.num_kv_heads * spec.head_dim * spec.hidden_size;
}

std::int64_t ExpertAttention::size_of(const ExpertAttentionSpec& spec) {
  const std::int64_t C = spec.hidden_size;
  return spec.num_experts * (C + size_of_expert(spec)) + size_of_expert(spec) + C;
}

void ExpertAttention::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, E = spec_.num_experts,
                     O = spec_.num_kv_heads * spec_.head_dim;
  weights_.router = params.add("self_attn.gate.weight", {E, C}, {None, Embed}, spec_.router_init);
  weights_.input =
      params.add("self_attn.experts.q_proj.weight", {E, O, C}, {Expert, None, Embed}, spec_.init);
  weights_.output =
      params.add("self_attn.experts.o_proj.weight", {E, C, O}, {Expert, Embed, None}, spec_.init);
  bias_ = params.add("self_attn.experts.bias", {C}, {Embed}, Init::zeros());
  kv_ = params.add("self_attn.kv_proj.weight", {2 * O, C}, {None, Embed}, spec_.init);
}

at::Tensor ExpertAttention::operator()(const at::Tensor& h_BTC,
                                       const nn::Batch& batch,
                                       const nn::Block& block,
                                       nn::StepContext& context,
                                       std::vector<nn::Term>& terms,
                                       nn::PooledBalance* sums) const {
  const std::int64_t B = h_BTC.size(0), T = h_BTC.size(1), C = h_BTC.size(2),
                     J = spec_.router.top_k, G = spec_.num_kv_heads, K = spec_.head_dim;
  const nn::Routed routed = nn::route(h_BTC, weights_, spec_.router, {}, context);
  if (context.training()) nn::add_balance_terms(routed, spec_.balance, context, terms);
  if (sums != nullptr) *sums = nn::add_to_pool(*sums, routed, spec_.balance, context);
  // Heads that share keys and values are neighbours: head g J + j is that of choice j.
  const at::Tensor q_NJO =
      nn::project_by_expert(h_BTC.reshape({B * T, 1, C}), routed, *weights_.input, context);
  at::Tensor q_BHTK =
      q_NJO.view({B, T, J, G, K}).permute({0, 3, 2, 1, 4}).reshape({B, G * J, T, K});
  const std::vector<at::Tensor> kv =
      nn::split_heads(nn::linear(h_BTC, *kv_, nullptr, context), 2, G);
  const ops::RotaryTable table = nn::rotary_table(batch.tensor("input_ids"),
                                                  spec_.max_positions,
                                                  spec_.rotary_frequencies,
                                                  context,
                                                  document_starts(batch),
                                                  spec_.rotary_factor);
  ops::AttentionArgs args;
  if (batch.has("attention_mask")) args.mask_BS = batch.tensor("attention_mask");
  args.starts_BT = document_starts(batch);
  args.dropout = context.dropout("attention", spec_.dropout);
  const at::Tensor y_BHTK = nn::attention(
      nn::rotary(q_BHTK, table), nn::rotary(kv[0], table), kv[1], std::move(args), block, context);
  const at::Tensor y_NJO =
      y_BHTK.reshape({B, G, J, T, K}).permute({0, 3, 2, 1, 4}).reshape({B * T, J, G * K});
  return output(y_NJO, routed, context).view({B, T, C});
}

at::Tensor ExpertAttention::output(const at::Tensor& y_NKO,
                                   const nn::Routed& routed,
                                   nn::StepContext& context) const {
  const at::Tensor z_NKC = nn::project_by_expert(y_NKO, routed, *weights_.output, context);
  return nn::detail::add_bias(nn::sum_of_choices(z_NKC, routed), *bias_, context);
}

at::Tensor ExpertAttention::idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const {
  if (context.experts == nullptr) return {};
  inputs.push_back(at::empty({0, 1, spec_.hidden_size}, weights_.router->tensor().options())
                       .set_requires_grad(at::GradMode::is_enabled()));
  const nn::Routed none = nn::route_nothing(spec_.num_experts, spec_.router.top_k);
  const at::Tensor q_NKO = nn::project_by_expert(inputs.back(), none, *weights_.input, context);
  return nn::project_by_expert(q_NKO, none, *weights_.output, context).sum(1);
}

}  // namespace tessera::models
