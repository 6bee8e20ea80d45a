// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/self_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"

// Legend: B batch, T tokens, C embed, H heads, G heads of keys and values, K channels of a head, O
// outputs of the fused projection.
namespace tessera::models {

namespace {

using enum LogicalAxis;
using Axes = std::vector<LogicalAxis>;

/// Tensor of a batch: the number of tokens of each sample's prefix, int64 [B].
constexpr const char* kPrefix = "prefix_lengths";

/// Attention in which the first tokens of each sample, as many as "prefix_lengths" [B] of the batch
/// says, see each other in both directions, and the others what is before them. A sample is two
/// calls: the prefix alone, and the others over all keys, so that no pair of tokens is computed in
/// vain. A prompt that is read for generation is a prefix as a whole.
at::Tensor attend_with_prefix(const nn::Qkv& qkv,
                              ops::AttentionArgs args,
                              const at::Tensor& lengths_B,
                              const nn::Block& block,
                              nn::StepContext& context) {
  TESSERA_REQUIRE(args.window == 0 && args.alibi.empty() && !args.starts_BT.defined(),
                  Unsupported,
                  fmt::format("a prefix that sees itself in both directions, in block {}, whose "
                              "attention has a window, ALiBi or separate documents",
                              context.block_name),
                  "choose the family of a decoder without them, or the task pretrain");
  const at::Tensor &q = qkv.q_BHTK, &k = qkv.k_BGTK, &v = qkv.v_BGTK;
  if (context.mode() == nn::Mode::Prefill) {
    nn::fill_cache(k, v, block, context);
    args.causal = false;
    return nn::attention(q, k, v, std::move(args), block, context);
  }
  // Without values: as if there were no prefix, which takes as much memory.
  if (lengths_B.is_meta()) return nn::attention(q, k, v, args, block, context);
  const std::int64_t tokens = q.size(2);
  const auto attend = [&](std::int64_t sample, ops::Run queries, std::int64_t keys, bool causal) {
    const std::int64_t count = queries.end - queries.begin;
    ops::AttentionArgs own = args;
    own.causal = causal;
    own.query_offset = queries.begin;
    if (args.mask_BS.defined()) own.mask_BS = args.mask_BS.narrow(0, sample, 1).narrow(1, 0, keys);
    if (args.bias_HTS.defined())
      own.bias_HTS = args.bias_HTS.narrow(1, queries.begin, count).narrow(2, 0, keys);
    if (args.dropout.active()) {
      own.dropout.sample_ids = {args.dropout.sample_ids.at(static_cast<std::size_t>(sample))};
      own.place = ops::AttentionPlace{.tokens = tokens, .queries = {queries}, .keys = {{0, keys}}};
    }
    return nn::attention(q.narrow(0, sample, 1).narrow(2, queries.begin, count),
                         k.narrow(0, sample, 1).narrow(2, 0, keys),
                         v.narrow(0, sample, 1).narrow(2, 0, keys),
                         std::move(own),
                         block,
                         context);
  };
  const at::Tensor lengths = lengths_B.cpu();
  std::vector<at::Tensor> samples;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const auto prefix = lengths[b].item<std::int64_t>();
    TESSERA_REQUIRE(prefix >= 0 && prefix <= tokens,
                    Shape,
                    fmt::format("a prefix of {} tokens in a sample of {}", prefix, tokens),
                    "give at most the tokens of a sample in \"prefix_lengths\"");
    std::vector<at::Tensor> parts;
    if (prefix > 0) parts.push_back(attend(b, {0, prefix}, prefix, /*causal=*/false));
    if (prefix < tokens) parts.push_back(attend(b, {prefix, tokens}, tokens, /*causal=*/true));
    samples.push_back(parts.size() == 1 ? parts.front() : at::cat(parts, 2));
  }
  return at::cat(samples);
}

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
  if (spec_.qk_norm == QkNorm::PerHead) {
    q_norm_ = params.add(spec_.q_norm_name + ".weight", {K}, {None}, init);
    k_norm_ = params.add(spec_.k_norm_name + ".weight", {K}, {None}, init);
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
  if (q_norm_ != nullptr) {
    qkv.q_BHTK = norm(qkv.q_BHTK, *q_norm_);
    qkv.k_BGTK = norm(qkv.k_BGTK, *k_norm_);
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
  const at::Tensor y_BHTK =
      spec_.causal && batch.has(kPrefix) && context.mode() != nn::Mode::Decode
          ? attend_with_prefix(qkv, std::move(args), batch.tensor(kPrefix), block, context)
          : nn::attention(qkv.q_BHTK, qkv.k_BGTK, qkv.v_BGTK, std::move(args), block, context);
  return nn::linear(nn::merge_heads(y_BHTK), *output_weight_, output_bias_, context);
}

}  // namespace tessera::models
