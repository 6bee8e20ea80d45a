// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/models/experts.h"
#include "tessera/models/feed_forward.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed.
namespace tessera::models {

namespace {

using enum LogicalAxis;

NormSpec norm_of(const DecoderShape& shape) {
  return {.kind = shape.layer_norms ? NormKind::LayerNorm : NormKind::RmsNorm,
          .eps = shape.rms_norm_eps,
          .offset = shape.norm_offset,
          .bias = shape.norm_bias};
}

TrunkOutput output_of(const DecoderShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "norm",
      .vocabulary = {"embed_tokens.weight",
                     shape.vocab_size,
                     shape.tie_embeddings,
                     shape.head_bias},
      .init_std = shape.init_std,
      .logit_softcap = shape.logit_softcap,
      .state_factor = shape.state_factor,
      .heads = {.token =
                    HeadSpec{.dropout = shape.classifier_dropout, .output_bias = "score.bias"}},
  };
}

DecoderLayerKind kind_of(const DecoderShape& shape, std::int64_t layer) {
  return shape.layers.empty() ? DecoderLayerKind()
                              : shape.layers.at(static_cast<std::size_t>(layer));
}

SelfAttentionSpec attention_of(const DecoderShape& shape, const DecoderLayerKind& kind) {
  const Init init = Init::normal(shape.init_std);
  SelfAttentionSpec spec = {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.kv_heads(),
      .head_dim = shape.head_channels(),
      .qkv_name = "self_attn.qkv_proj",
      .output_name = "self_attn.o_proj",
      .qkv_bias = shape.attention_bias,
      .output_bias = shape.output_bias,
      .qkv_init = init,
      .output_init = init,
      .dropout = shape.attention_dropout,
      .max_positions = shape.max_positions,
      .rotary_interleaved = shape.rotary_interleaved,
      .window = kind.window,
      .chunk = kind.chunk,
      .scale = shape.attention_scale,
      .softcap = shape.score_softcap,
      .qk_norm = shape.qk_norm,
      .qk_norm_eps = shape.rms_norm_eps,
      .qk_norm_offset = shape.norm_offset,
      .sinks_name = shape.sinks ? "self_attn.sinks" : "",
      .qkv_clip = shape.qkv_clip,
  };
  if (!kind.rotary) {
    spec.temperature = shape.temperature;
    return spec;
  }
  spec.norms_rotated = shape.norms_rotated;
  const Rotation& rotation = kind.local_rotary ? shape.local_rotation : shape.rotation;
  spec.rotary_frequencies = rotation.frequencies(shape.rotary_channels());
  spec.rotary_factor = rotation.factor();
  return spec;
}

LatentAttentionSpec latent_attention_of(const DecoderShape& shape) {
  const LatentChannels& channels = shape.latent.value();
  return {.hidden_size = shape.hidden_size,
          .num_heads = shape.num_heads,
          .channels = channels,
          .bias = shape.attention_bias,
          .init = Init::normal(shape.init_std),
          .dropout = shape.attention_dropout,
          .rotary_frequencies = shape.rotation.frequencies(channels.rotary),
          .max_positions = shape.max_positions,
          .rotary_interleaved = shape.rotary_interleaved,
          .rotary_factor = shape.rotation.factor(),
          .scale = shape.attention_scale};
}

ExpertAttentionSpec expert_attention_of(const DecoderShape& shape) {
  const ExpertsSpec& experts = shape.experts.value();
  return {.hidden_size = shape.hidden_size,
          .num_kv_heads = shape.kv_heads(),
          .head_dim = shape.head_channels(),
          .num_experts = experts.num_experts,
          .router = experts.router,
          .balance = experts.balance,
          .init = Init::normal(shape.init_std),
          .router_init = experts.router_init,
          .dropout = shape.attention_dropout,
          .rotary_frequencies = shape.rotation.frequencies(shape.rotary_channels()),
          .max_positions = shape.max_positions,
          .rotary_factor = shape.rotation.factor()};
}

/// The attention of a layer, of any kind.
class Attention {
 public:
  Attention(const DecoderShape& shape, const DecoderLayerKind& kind)
      : attention_(kind_of(shape, kind)) {}
  void declare(nn::Params& params) {
    std::visit([&](auto& attention) { attention.declare(params); }, attention_);
  }
  /// `terms` and `sums` are those of FeedForward::pooled().
  at::Tensor operator()(const at::Tensor& h_BTC,
                        const nn::Batch& batch,
                        const nn::Block& block,
                        nn::StepContext& context,
                        std::vector<nn::Term>& terms,
                        nn::PooledBalance* sums) const {
    if (const auto* experts = std::get_if<ExpertAttention>(&attention_))
      return (*experts)(h_BTC, batch, block, context, terms, sums);
    if (const auto* latent = std::get_if<LatentAttention>(&attention_))
      return (*latent)(h_BTC, batch, block, context);
    return std::get<SelfAttention>(attention_)(h_BTC, batch, block, context);
  }
  /// As FeedForward::idle().
  at::Tensor idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const {
    const auto* experts = std::get_if<ExpertAttention>(&attention_);
    return experts == nullptr ? at::Tensor() : experts->idle(inputs, context);
  }

 private:
  using Kind = std::variant<SelfAttention, LatentAttention, ExpertAttention>;
  static Kind kind_of(const DecoderShape& shape, const DecoderLayerKind& kind) {
    if (shape.latent) return LatentAttention(latent_attention_of(shape));
    if (shape.expert_attention) return ExpertAttention(expert_attention_of(shape));
    return SelfAttention(attention_of(shape, kind));
  }
  Kind attention_;
};

MlpSpec mlp_of(const DecoderShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .ffn_hidden_size = shape.ffn_hidden_size,
          .input_name = "mlp.gate_up_proj",
          .output_name = "mlp.down_proj",
          .bias = shape.mlp_bias,
          .input_init = init,
          .output_init = init,
          .activation = shape.activation,
          .gated = true};
}

FeedForwardSpec feed_forward_of(const DecoderShape& shape, const DecoderLayerKind& kind) {
  if (kind.sparse) return shape.experts.value();
  return mlp_of(shape);
}

/// Not 0 if a balance term covers all sparse layers: the number of experts. In training, sums then
/// pass from layer to layer after the residual stream.
std::int64_t pools(const DecoderShape& shape) {
  if (!shape.experts || shape.num_sparse_layers() == 0) return 0;
  return make_feed_forward(*shape.experts)->pools();
}

class TokenEmbedding final : public nn::Block {
 public:
  explicit TokenEmbedding(const DecoderShape& shape) : shape_(shape), pools_(pools(shape)) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_of(shape_)); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    at::Tensor x_BTC = nn::embedding(batch.tensor("input_ids"), *table_, context);
    if (shape_.embedding_scale != 0.0) x_BTC = x_BTC * rounded_scale(x_BTC.scalar_type());
    nn::Outcome out = {.flow = {.diff = {x_BTC}}};
    if (pools_ > 0 && context.training()) {
      const nn::PooledBalance none = nn::no_balance(1, pools_, x_BTC.device());
      out.flow.diff.push_back(none.scores_GE);
      out.flow.fixed.push_back(none.counts_GE);
    }
    return out;
  }

 private:
  [[nodiscard]] double rounded_scale(at::ScalarType dtype) const {
    return at::scalar_tensor(shape_.embedding_scale, at::kDouble).to(dtype).item<double>();
  }

  DecoderShape shape_;
  std::int64_t pools_ = 0;
  Param* table_ = nullptr;
};

/// x + after(branch(before(x))) twice; each of the norms may be absent.
class DecoderLayer final : public nn::Block, public nn::HasExperts {
 public:
  DecoderLayer(const DecoderShape& shape, const DecoderLayerKind& kind, bool last)
      : shape_(shape),
        last_(last),
        pools_(pools(shape)),
        attention_(shape, kind),
        feed_forward_(make_feed_forward(feed_forward_of(shape, kind))),
        before_attention_(norm_at(shape.norm_before_attention)),
        after_attention_(norm_at(shape.norm_after_attention)),
        before_mlp_(norm_at(shape.norm_before_mlp)),
        after_mlp_(norm_at(shape.norm_after_mlp)) {}

  void declare(nn::Params& params) override {
    before_attention_.declare(params, shape_.norm_before_attention, shape_.hidden_size);
    attention_.declare(params);
    after_attention_.declare(params, shape_.norm_after_attention, shape_.hidden_size);
    before_mlp_.declare(params, shape_.norm_before_mlp, shape_.hidden_size);
    feed_forward_->declare(params);
    after_mlp_.declare(params, shape_.norm_after_mlp, shape_.hidden_size);
  }

  [[nodiscard]] bool works_by_token() const override {
    return !shape_.sinks && feed_forward_->works_by_token();
  }
  [[nodiscard]] std::string grid_obstacle() const override {
    if (shape_.latent) return "latent attention";
    if (shape_.sinks) return "attention sinks";
    if (shape_.expert_attention) return "experts in attention";
    return feed_forward_->grid_obstacle();
  }
  [[nodiscard]] nn::HasExperts::Router router() const override { return feed_forward_->router(); }
  [[nodiscard]] bool exchanges() const override { return feed_forward_->exchanges(); }

  nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) override {
    nn::Outcome out;
    // The backward pass begins with the part that was made last, as that of a rank with tokens
    // does.
    for (const at::Tensor& none :
         {attention_.idle(inputs, context), feed_forward_->idle(inputs, context)}) {
      if (none.defined()) out.flow.diff.push_back(none);
    }
    return out;
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    nn::Outcome out;
    std::optional<nn::PooledBalance> sums;
    if (pools_ > 0 && context.training())
      sums = {.scores_GE = in.diff.at(1), .counts_GE = in.fixed.at(0)};
    const nn::Normed begin = before_attention_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = scaled(after_attention_(
        attention_(begin.normed_BTC, batch, *this, context, out.terms, sums ? &*sums : nullptr),
        context));
    const nn::Normed middle = before_mlp_.residual(
        begin.x_BTC, context, y_BTC, context.dropout("attention branch", shape_.residual_dropout));
    const at::Tensor z_BTC =
        scaled(after_mlp_(branch(middle.normed_BTC, context, sums, out), context));
    const ops::DropoutKey key = context.dropout("mlp branch", shape_.residual_dropout);
    out.flow.diff.insert(
        out.flow.diff.begin(),
        key.active() ? nn::add_dropout(middle.x_BTC, z_BTC, key) : middle.x_BTC + z_BTC);
    return out;
  }

 private:
  /// The feed-forward network; sums of a balance term over all layers continue in `out`, and end in
  /// the last layer, which adds the term.
  at::Tensor branch(const at::Tensor& h_BTC,
                    nn::StepContext& context,
                    std::optional<nn::PooledBalance>& sums,
                    nn::Outcome& out) const {
    if (!sums) return (*feed_forward_)(h_BTC, context, out.terms);
    at::Tensor z_BTC = feed_forward_->pooled(h_BTC, context, out.terms, *sums);
    if (last_) {
      const ExpertsSpec& experts = shape_.experts.value();
      nn::add_pooled_term(*sums, experts.balance, experts.router.top_k, out.terms);
    } else {
      out.flow.diff.push_back(sums->scores_GE);
      out.flow.fixed.push_back(sums->counts_GE);
    }
    return z_BTC;
  }

  [[nodiscard]] at::Tensor scaled(const at::Tensor& branch_BTC) const {
    return shape_.branch_factor == 1.0 ? branch_BTC : branch_BTC * shape_.branch_factor;
  }

  [[nodiscard]] NormSpec norm_at(const std::string& name) const {
    return name.empty() ? NormSpec{.kind = NormKind::None} : norm_of(shape_);
  }

  DecoderShape shape_;
  bool last_;
  std::int64_t pools_;  ///< pools()
  Attention attention_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm before_attention_, after_attention_, before_mlp_, after_mlp_;
};

}  // namespace

std::int64_t DecoderShape::rotary_channels() const {
  return static_cast<std::int64_t>(static_cast<double>(head_channels()) * rotary_share);
}

std::int64_t DecoderShape::num_sparse_layers() const {
  return std::count_if(
      layers.begin(), layers.end(), [](const DecoderLayerKind& kind) { return kind.sparse; });
}

std::int64_t DecoderShape::inactive_parameters() const {
  const std::int64_t sparse = num_sparse_layers();
  if (sparse == 0) return 0;
  const FeedForward::Size size = size_of(experts.value());
  std::int64_t of_attention = 0;
  if (expert_attention) {
    const ExpertAttentionSpec spec = expert_attention_of(*this);
    of_attention = (spec.num_experts - spec.router.top_k) * ExpertAttention::size_of_expert(spec);
  }
  return sparse * (size.total - size.active) + num_layers * of_attention;
}

std::int64_t DecoderShape::num_parameters() const {
  const std::int64_t C = hidden_size, H = num_heads, G = kv_heads(), K = head_channels();
  const std::int64_t biases = (attention_bias ? (H + 2 * G) * K : 0) + (output_bias ? C : 0);
  const std::int64_t of_heads = qk_norm == QkNorm::PerHead    ? 2 * K
                                : qk_norm == QkNorm::AllHeads ? (H + G) * K
                                                              : 0;
  std::int64_t norms = 0;
  const std::int64_t of_norm = norm_bias ? 2 * C : C;
  for (const std::string* name :
       {&norm_before_attention, &norm_after_attention, &norm_before_mlp, &norm_after_mlp})
    norms += name->empty() ? 0 : of_norm;
  const std::int64_t attention =
                         latent ? LatentAttention::size_of(latent_attention_of(*this))
                         : expert_attention
                             ? ExpertAttention::size_of(expert_attention_of(*this))
                             : (2 * H + 2 * G) * K * C + biases + of_heads + (sinks ? H : 0),
                     sparse = num_sparse_layers();
  std::int64_t mlps = (num_layers - sparse) * size_of(mlp_of(*this)).total;
  if (sparse > 0) mlps += sparse * size_of(experts.value()).total;
  return num_layers * (attention + norms) + mlps + of_norm + (head_bias ? vocab_size : 0) +
         (tie_embeddings ? 1 : 2) * vocab_size * C;
}

Trunk decoder_trunk(const DecoderShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(
      {"embed_tokens", [shape] { return std::make_unique<TokenEmbedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const bool last = i + 1 == shape.num_layers;
    trunk.blocks.push_back({fmt::format("layers.{}", i), [shape, kind = kind_of(shape, i), last] {
                              return std::make_unique<DecoderLayer>(shape, kind, last);
                            }});
  }
  return trunk;
}

}  // namespace tessera::models
