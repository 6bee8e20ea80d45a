// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/self_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/nn/sink_attention.h"

// Legend: B batch, T tokens, C embed, H heads, G heads of keys and values, K channels of a head, O
// outputs of the fused projection.
namespace tessera::models {

namespace {

using enum LogicalAxis;
using Axes = std::vector<LogicalAxis>;

/// Tensor of a batch: the number of tokens of each sample's prefix, int64 [B].
constexpr const char* kPrefix = "prefix_lengths";

}  // namespace

at::Tensor document_starts(const nn::Batch& batch) {
  return batch.has("document_starts") ? batch.tensor("document_starts") : at::Tensor();
}

SelfAttention::SelfAttention(SelfAttentionSpec spec) : spec_(std::move(spec)) {
  if (spec_.alibi) alibi_ = ops::alibi_slopes(spec_.num_heads);
}

void SelfAttention::declare_norms(nn::Params& params) {
  const std::int64_t H = spec_.num_heads, G = spec_.num_kv_heads, K = spec_.head_dim;
  const std::int64_t group = std::max<std::int64_t>(1, H / G);
  const Init init = spec_.qk_norm_offset == 0.0 ? Init::ones() : Init::zeros();
  if (spec_.qk_norm == QkNorm::PerHead || spec_.qk_norm == QkNorm::LayerPerHead) {
    q_norm_ = params.add(spec_.q_norm_name + ".weight", {K}, {None}, init);
    k_norm_ = params.add(spec_.k_norm_name + ".weight", {K}, {None}, init);
    if (spec_.qk_norm == QkNorm::PerHead) return;
    q_norm_bias_ = params.add(spec_.q_norm_name + ".bias", {K}, {None}, Init::zeros());
    k_norm_bias_ = params.add(spec_.k_norm_name + ".bias", {K}, {None}, Init::zeros());
  } else if (spec_.qk_norm == QkNorm::AllHeads) {
    const bool shared = group > 1;
    q_norm_ = params.add(spec_.q_norm_name + ".weight",
                         {H * K},
                         {shared ? GroupedHeads : Heads},
                         init,
                         {.unit = group * K, .inner_unit = K});
    k_norm_ = params.add(
        spec_.k_norm_name + ".weight", {G * K}, {shared ? KvHeads : Heads}, init, {.unit = K});
  }
}

void SelfAttention::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, H = spec_.num_heads, G = spec_.num_kv_heads,
                     K = spec_.head_dim;
  const std::int64_t group = std::max<std::int64_t>(1, H / G), O = (H + 2 * G) * K;
  const bool shared = group > 1;
  qkv_weight_ =
      params.add(spec_.qkv_name + ".weight",
                 shared ? Shape{G, group + 2, K, C} : Shape{3, H, K, C},
                 shared ? Axes{KvHeads, None, None, Embed} : Axes{None, Heads, None, Embed},
                 spec_.qkv_init,
                 {.matrix_shape = {O, C}});
  if (spec_.qkv_bias) {
    qkv_bias_ = params.add(spec_.qkv_name + ".bias",
                           shared ? Shape{G, group + 2, K} : Shape{3, H, K},
                           shared ? Axes{KvHeads, None, None} : Axes{None, Heads, None},
                           Init::zeros(),
                           {.matrix_shape = {O}});
  }
  output_weight_ = params.add(spec_.output_name + ".weight",
                              {C, H * K},
                              {Embed, shared ? GroupedHeads : Heads},
                              spec_.output_init,
                              {.unit = group * K, .inner_unit = K});
  if (spec_.output_bias)
    output_bias_ = params.add(spec_.output_name + ".bias", {C}, {Embed}, Init::zeros());
  declare_norms(params);
  if (!spec_.sinks_name.empty()) {
    sinks_ = params.add(spec_.sinks_name,
                        {H},
                        {shared ? GroupedHeads : Heads},
                        spec_.qkv_init,
                        {.unit = group, .inner_unit = 1});
  }
  if (!spec_.relative_bias) return;
  const RelativeBiasSpec& bias = *spec_.relative_bias;
  relative_bias_ = params.tied(
      bias.name, {bias.buckets.count, H}, {None, Heads}, bias.init, {.role = Role::PositionTable});
}

void SelfAttention::prepare(nn::Qkv& qkv, const nn::Batch& batch, nn::StepContext& context) const {
  const auto norm = [&](const at::Tensor& x_BHTK, const Param& weight) {
    const auto apply = spec_.qk_norm == QkNorm::PerHead ? nn::head_norm : nn::all_heads_norm;
    return apply(x_BHTK, weight, spec_.qk_norm_eps, spec_.qk_norm_offset, context);
  };
  if (q_norm_bias_ != nullptr) {
    const double eps = spec_.qk_norm_eps;
    qkv.q_BHTK = nn::head_layer_norm(qkv.q_BHTK, *q_norm_, *q_norm_bias_, eps, context);
    qkv.k_BGTK = nn::head_layer_norm(qkv.k_BGTK, *k_norm_, *k_norm_bias_, eps, context);
  } else if (q_norm_ != nullptr) {
    qkv.q_BHTK = norm(qkv.q_BHTK, *q_norm_);
    qkv.k_BGTK = norm(qkv.k_BGTK, *k_norm_);
  }
  if (spec_.qkv_clip > 0) {
    for (at::Tensor* const x : {&qkv.q_BHTK, &qkv.k_BGTK, &qkv.v_BGTK})
      *x = x->clamp(-spec_.qkv_clip, spec_.qkv_clip);
  }
  if (spec_.temperature) {
    qkv.q_BHTK = nn::by_position(qkv.q_BHTK,
                                 *spec_.temperature,
                                 batch.tensor("input_ids"),
                                 spec_.max_positions,
                                 context,
                                 document_starts(batch));
  }
  if (spec_.rotary_frequencies.empty()) return;
  ops::RotaryTable table = nn::rotary_table(batch.tensor("input_ids"),
                                            spec_.max_positions,
                                            spec_.rotary_frequencies,
                                            context,
                                            document_starts(batch),
                                            spec_.rotary_factor);
  table.interleaved = spec_.rotary_interleaved;
  qkv.q_BHTK = nn::rotary(qkv.q_BHTK, table);
  qkv.k_BGTK = nn::rotary(qkv.k_BGTK, table);
  if (!spec_.norms_rotated) return;
  qkv.q_BHTK = nn::plain_head_norm(qkv.q_BHTK, spec_.qk_norm_eps);
  qkv.k_BGTK = nn::plain_head_norm(qkv.k_BGTK, spec_.qk_norm_eps);
}

at::Tensor SelfAttention::operator()(const at::Tensor& h_BTC,
                                     const nn::Batch& batch,
                                     const nn::Block& block,
                                     nn::StepContext& context) const {
  nn::Qkv qkv = nn::project_qkv(h_BTC, *qkv_weight_, qkv_bias_, context);
  prepare(qkv, batch, context);
  ops::AttentionArgs args;
  args.causal = spec_.causal;
  args.window = spec_.window;
  args.chunk = spec_.chunk;
  args.scale = spec_.scale;
  args.softcap = spec_.softcap;
  args.alibi = alibi_;
  args.first_head = qkv.first_head;
  if (batch.has(spec_.mask_name)) args.mask_BS = batch.tensor(spec_.mask_name);
  args.starts_BT = document_starts(batch);
  args.dropout = context.dropout("attention", spec_.dropout);
  if (relative_bias_ != nullptr) {
    const std::int64_t tokens = qkv.q_BHTK.size(2);
    args.bias_HTS = nn::relative_bias(
        *relative_bias_, spec_.relative_bias->buckets, tokens, context.position + tokens, context);
  }
  const at::Tensor y_BHTK = attend(qkv, std::move(args), batch, block, context);
  return nn::linear(nn::merge_heads(y_BHTK), *output_weight_, output_bias_, context);
}

at::Tensor SelfAttention::attend(const nn::Qkv& qkv,
                                 ops::AttentionArgs args,
                                 const nn::Batch& batch,
                                 const nn::Block& block,
                                 nn::StepContext& context) const {
  const auto& [q_BHTK, k_BGTK, v_BGTK, first_head] = qkv;
  if (sinks_ != nullptr)
    return nn::sink_attention(q_BHTK, k_BGTK, v_BGTK, std::move(args), *sinks_, block, context);
  if (spec_.causal && batch.has(kPrefix) && context.mode() != nn::Mode::Decode) {
    return nn::prefix_attention(
        q_BHTK, k_BGTK, v_BGTK, std::move(args), batch.tensor(kPrefix), block, context);
  }
  if (spec_.sample_tokens > 0) {
    return nn::padded_attention(
        q_BHTK, k_BGTK, v_BGTK, std::move(args), spec_.sample_tokens, block, context);
  }
  return nn::attention(q_BHTK, k_BGTK, v_BGTK, std::move(args), block, context);
}

}  // namespace tessera::models
