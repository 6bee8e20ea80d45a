// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "tessera/models/self_attention.h"
#include "tessera/nn/attention_source.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/values_of_heads.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/batch_invariance.h"

// Legend: B batch, T tokens, C embed, H heads of this rank, K channels of a head's keys, R width of
// the latent vector.
namespace tessera::models {

using enum LogicalAxis;

std::int64_t LatentAttention::size_of(const LatentAttentionSpec& spec) {
  const LatentChannels& c = spec.channels;
  const std::int64_t C = spec.hidden_size, H = spec.num_heads, Q = c.query_rank;
  const std::int64_t queries = Q > 0 ? Q * C + Q + H * c.of_keys() * Q : H * c.of_keys() * C;
  const std::int64_t keys = (c.rank + c.rotary) * C + c.rank + H * (c.plain + c.values) * c.rank;
  const std::int64_t biases = spec.bias ? Q + c.rank + c.rotary + C : 0;
  return queries + keys + C * H * c.values + biases;
}

void LatentAttention::declare(nn::Params& params) {
  const LatentChannels& c = spec_.channels;
  const std::int64_t C = spec_.hidden_size, H = spec_.num_heads, K = c.of_keys();
  const auto of_heads = [&](const char* name, std::int64_t channels, std::int64_t inputs) {
    return params.add(std::string("self_attn.") + name + ".weight",
                      {1, H, channels, inputs},
                      {None, Heads, None, inputs == C ? Embed : None},
                      spec_.init,
                      {.matrix_shape = {H * channels, inputs}});
  };
  const auto bias = [&](const char* name, std::int64_t size) {
    return spec_.bias
               ? params.add(
                     std::string("self_attn.") + name + ".bias", {size}, {None}, Init::zeros())
               : nullptr;
  };
  if (c.query_rank > 0) {
    q_a_ = params.add("self_attn.q_a_proj.weight", {c.query_rank, C}, {None, Embed}, spec_.init);
    q_a_bias_ = bias("q_a_proj", c.query_rank);
    query_norm_.declare(params, "self_attn.q_a_layernorm", c.query_rank);
    q_ = of_heads("q_b_proj", K, c.query_rank);
  } else {
    q_ = of_heads("q_proj", K, C);
  }
  kv_a_ = params.add(
      "self_attn.kv_a_proj_with_mqa.weight", {c.rank + c.rotary, C}, {None, Embed}, spec_.init);
  kv_a_bias_ = bias("kv_a_proj_with_mqa", c.rank + c.rotary);
  norm_.declare(params, "self_attn.kv_a_layernorm", c.rank);
  kv_b_ = of_heads("kv_b_proj", c.plain + c.values, c.rank);
  output_ = params.add(
      "self_attn.o_proj.weight", {C, H * c.values}, {Embed, Heads}, spec_.init, {.unit = c.values});
  output_bias_ = bias("o_proj", C);
}

at::Tensor LatentAttention::queries(const at::Tensor& h_BTC,
                                    const ops::RotaryTable& table,
                                    nn::StepContext& context) const {
  const LatentChannels& c = spec_.channels;
  at::Tensor from = h_BTC;
  if (q_a_ != nullptr) from = query_norm_(nn::linear(h_BTC, *q_a_, q_a_bias_, context), context);
  const at::Tensor q_BHTK =
      nn::split_heads(nn::linear(from, *q_, nullptr, context), 1, nn::heads_of(*q_).count)[0];
  return at::cat(
      {q_BHTK.narrow(3, 0, c.plain), nn::rotary(q_BHTK.narrow(3, c.plain, c.rotary), table)}, 3);
}

at::Tensor LatentAttention::operator()(const at::Tensor& h_BTC,
                                       const nn::Batch& batch,
                                       const nn::Block& block,
                                       nn::StepContext& context) const {
  const LatentChannels& c = spec_.channels;
  ops::RotaryTable table = nn::rotary_table(batch.tensor("input_ids"),
                                            spec_.max_positions,
                                            spec_.rotary_frequencies,
                                            context,
                                            document_starts(batch),
                                            spec_.rotary_factor);
  table.interleaved = spec_.rotary_interleaved;
  const at::Tensor q_BHTK = queries(h_BTC, table, context);
  const at::Tensor latent_BTR = nn::linear(h_BTC, *kv_a_, kv_a_bias_, context);
  const Shared shared = {
      norm_(latent_BTR.narrow(2, 0, c.rank), context),
      nn::rotary(nn::shared_by_heads(latent_BTR.narrow(2, c.rank, c.rotary), context).unsqueeze(1),
                 table)};
  ops::AttentionArgs args;
  args.scale = spec_.scale > 0 ? spec_.scale : 1.0 / std::sqrt(static_cast<double>(c.of_keys()));
  args.first_head = nn::heads_of(*kv_b_).first;
  if (batch.has("attention_mask")) args.mask_BS = batch.tensor("attention_mask");
  args.starts_BT = document_starts(batch);
  args.dropout = context.dropout("attention", spec_.dropout);
  const at::Tensor y_BHTK = keeps_latents(context) && context.mode() == nn::Mode::Decode
                                ? by_latent(q_BHTK, shared, std::move(args), block, context)
                                : by_head(q_BHTK, shared, std::move(args), block, context);
  return nn::linear(nn::merge_heads(y_BHTK), *output_, output_bias_, context);
}

bool LatentAttention::keeps_latents(const nn::StepContext& context) const {
  const bool generates = context.mode() == nn::Mode::Prefill || context.mode() == nn::Mode::Decode;
  return generates && kv_b_->extension() == nullptr && !kv_b_->scales().defined() &&
         !ops::batch_invariant();
}

at::Tensor LatentAttention::by_head(const at::Tensor& q_BHTK,
                                    const Shared& shared,
                                    ops::AttentionArgs args,
                                    const nn::Block& block,
                                    nn::StepContext& context) const {
  const LatentChannels& c = spec_.channels;
  const nn::HeadRange heads = nn::heads_of(*kv_b_);
  const at::Tensor kv_BHTK =
      nn::split_heads(nn::linear(shared.latent_BTR, *kv_b_, nullptr, context), 1, heads.count)[0];
  const at::Tensor k_BHTK = at::cat(
      {kv_BHTK.narrow(3, 0, c.plain), shared.placed_B1TK.expand({-1, heads.count, -1, -1})}, 3);
  const at::Tensor v_BHTK = kv_BHTK.narrow(3, c.plain, c.values);
  // Attention takes heads of one width: zeros change neither scores nor values.
  const std::int64_t width = std::max(c.of_keys(), c.values);
  const auto widened = [&](const at::Tensor& x) {
    return x.size(3) == width ? x : at::constant_pad_nd(x, {0, width - x.size(3)});
  };
  if (keeps_latents(context)) {
    nn::fill_cache(cached(shared), at::Tensor(), block, context);
    return nn::attend_here(
               {widened(q_BHTK), widened(k_BHTK), widened(v_BHTK)}, std::move(args), context)
        .narrow(3, 0, c.values);
  }
  return nn::attention(
             widened(q_BHTK), widened(k_BHTK), widened(v_BHTK), std::move(args), block, context)
      .narrow(3, 0, c.values);
}

at::Tensor LatentAttention::by_latent(const at::Tensor& q_BHTK,
                                      const Shared& shared,
                                      ops::AttentionArgs args,
                                      const nn::Block& block,
                                      nn::StepContext& context) const {
  const LatentChannels& c = spec_.channels;
  // q (W latent) = (q W) latent, for the rows of W that make keys; values likewise.
  const at::Tensor weight_HOR =
      kv_b_->tensor().detach().view({nn::heads_of(*kv_b_).count, c.plain + c.values, c.rank});
  const at::Tensor wide_BHTK =
      at::cat({at::matmul(q_BHTK.narrow(3, 0, c.plain), weight_HOR.narrow(1, 0, c.plain)),
               q_BHTK.narrow(3, c.plain, c.rotary)},
              3);
  const at::Tensor y_BHTK =
      nn::attention(wide_BHTK, cached(shared), at::Tensor(), std::move(args), block, context);
  return at::matmul(y_BHTK.narrow(3, 0, c.rank),
                    weight_HOR.narrow(1, c.plain, c.values).transpose(1, 2));
}

at::Tensor LatentAttention::cached(const Shared& shared) {
  return at::cat({shared.latent_BTR.unsqueeze(1), shared.placed_B1TK}, 3);
}

}  // namespace tessera::models
