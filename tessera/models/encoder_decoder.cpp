// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/encoder_decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/cross_attention.h"
#include "tessera/models/experts.h"
#include "tessera/models/feed_forward.h"
#include "tessera/models/norm.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"

// Legend: B batch, S tokens of the encoder, T tokens of the decoder, C embed.
namespace tessera::models {

namespace {

constexpr const char* kDecoderMask = "decoder_attention_mask";

NormSpec norm_of(const EncoderDecoderShape& shape) {
  return {.kind = NormKind::RmsNorm, .eps = shape.rms_norm_eps};
}

TrunkOutput output_of(const EncoderDecoderShape& shape) {
  const double scale =
      shape.scale_output ? 1.0 / std::sqrt(static_cast<double>(shape.hidden_size)) : 1.0;
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "decoder.final_layer_norm",
      .vocabulary = {"shared.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_factor,
      .state_factor = scale,
      .target = TargetText{.start_token = shape.start_token,
                           .pad_token = shape.pad_token,
                           .dropout = shape.outer_dropout()},
  };
}

/// Standard deviation of the initial weights of a projection from `inputs` features.
double std_of(const EncoderDecoderShape& shape, std::int64_t inputs) {
  return shape.init_factor / std::sqrt(static_cast<double>(inputs));
}

/// Scores are not divided by the root of the channels, so the initial query weights are smaller by
/// it.
double query_std(const EncoderDecoderShape& shape) {
  return std_of(shape, shape.hidden_size * shape.head_dim);
}

SelfAttentionSpec self_attention_of(const EncoderDecoderShape& shape, bool decoder) {
  const std::string stack = decoder ? "decoder" : "encoder";
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.num_heads,
      .head_dim = shape.head_dim,
      .qkv_name = "layer.0.SelfAttention.qkv",
      .output_name = "layer.0.SelfAttention.o",
      .qkv_init = Init::normal(query_std(shape), std_of(shape, shape.hidden_size)),
      .output_init = Init::normal(std_of(shape, shape.num_heads * shape.head_dim)),
      .dropout = shape.dropout,
      .causal = decoder,
      .scale = 1.0,
      .relative_bias =
          RelativeBiasSpec{
              .name = stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
              .buckets = {shape.buckets, shape.max_distance, !decoder},
              .init = Init::normal(std_of(shape, shape.hidden_size))},
      .mask_name = decoder ? kDecoderMask : "attention_mask",
  };
}

CrossAttentionSpec cross_attention_of(const EncoderDecoderShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .head_dim = shape.head_dim,
      .q_name = "layer.1.EncDecAttention.q",
      .kv_name = "layer.1.EncDecAttention.kv",
      .output_name = "layer.1.EncDecAttention.o",
      .q_init = Init::normal(query_std(shape)),
      .kv_init = Init::normal(std_of(shape, shape.hidden_size)),
      .output_init = Init::normal(std_of(shape, shape.num_heads * shape.head_dim)),
      .dropout = shape.dropout,
      .scale = 1.0,
  };
}

MlpSpec mlp_of(const EncoderDecoderShape& shape, int layer) {
  return {
      .hidden_size = shape.hidden_size,
      .ffn_hidden_size = shape.ffn_hidden_size,
      .input_name = fmt::format("layer.{}.DenseReluDense.wi", layer),
      .output_name = fmt::format("layer.{}.DenseReluDense.wo", layer),
      .bias = false,
      .input_init = Init::normal(std_of(shape, shape.hidden_size)),
      .output_init = Init::normal(std_of(shape, shape.ffn_hidden_size)),
      .activation = shape.activation,
      .gated = shape.gated,
      .dropout = shape.outer_dropout(),
  };
}

const std::optional<StackExperts>& experts_of(const EncoderDecoderShape& shape, bool decoder) {
  return decoder ? shape.decoder_experts : shape.encoder_experts;
}

std::int64_t sparse_layers(const std::optional<StackExperts>& experts) {
  return experts ? std::count(experts->sparse.begin(), experts->sparse.end(), true) : 0;
}

/// Not 0 if a balance term covers all layers of the stack together: the number of experts.
std::int64_t pools(const std::optional<StackExperts>& experts) {
  if (sparse_layers(experts) == 0 || !nn::pools_layers(experts->spec.balance)) return 0;
  return experts->spec.num_experts;
}

/// Appends the sums before the first layer of a stack to the flow, in training.
void begin_pool(const EncoderDecoderShape& shape,
                bool decoder,
                std::int64_t samples,
                const nn::StepContext& context,
                nn::Flow& flow) {
  const std::int64_t num_experts = pools(experts_of(shape, decoder));
  if (num_experts == 0 || !context.training()) return;
  const bool by_sample = experts_of(shape, decoder)->spec.balance.pooled_samples;
  const nn::PooledBalance none =
      nn::no_balance(by_sample ? samples : 1, num_experts, flow.diff.front().device());
  flow.diff.push_back(none.scores_GE);
  flow.fixed.push_back(none.counts_GE);
}

/// The feed-forward network of a layer, and its part of the stack's balance term.
class StackFeedForward {
 public:
  StackFeedForward(const EncoderDecoderShape& shape, bool decoder, std::int64_t layer)
      : pools_(pools(experts_of(shape, decoder))),
        last_(layer + 1 == (decoder ? shape.num_decoder_layers : shape.num_layers)) {
    const std::optional<StackExperts>& experts = experts_of(shape, decoder);
    if (pools_ > 0) {
      balance_ = experts->spec.balance;
      top_k_ = experts->spec.router.top_k;
    }
    const bool sparse = experts && experts->sparse.at(static_cast<std::size_t>(layer));
    network_ = sparse ? make_feed_forward(experts->spec)
                      : make_feed_forward(mlp_of(shape, decoder ? 2 : 1));
  }
  [[nodiscard]] FeedForward& network() const { return *network_; }
  /// Maps h to the branch. The sums of `in` continue in `out.flow`, whose own tensors are inserted
  /// before them; the last layer adds the term.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC,
                                      const nn::Flow& in,
                                      nn::StepContext& context,
                                      nn::Outcome& out) const {
    if (pools_ == 0 || !context.training()) return (*network_)(h_BTC, context, out.terms);
    nn::PooledBalance sums = {.scores_GE = in.diff.at(2), .counts_GE = in.fixed.at(0)};
    const at::Tensor branch_BTC = network_->pooled(h_BTC, context, out.terms, sums);
    if (last_) {
      nn::add_pooled_term(sums, balance_, top_k_, out.terms);
    } else {
      out.flow.diff.push_back(sums.scores_GE);
      out.flow.fixed.push_back(sums.counts_GE);
    }
    return branch_BTC;
  }
  /// As Block::idle() of the layer.
  [[nodiscard]] nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const {
    nn::Outcome out;
    const at::Tensor none = network_->idle(inputs, context);
    if (none.defined()) out.flow.diff = {none};
    return out;
  }

 private:
  std::int64_t pools_;  ///< pools()
  bool last_;           ///< of the stack
  nn::BalanceSpec balance_;
  std::int64_t top_k_ = 0;
  std::unique_ptr<FeedForward> network_;
};

/// Inserts the tensors of a layer before the sums of its balance term.
void insert_first(nn::Outcome& out, const at::Tensor& first, const at::Tensor& second) {
  out.flow.diff.insert(out.flow.diff.begin(), {first, second});
}

/// The embedding of both sequences' tokens.
class Tables final : public nn::Block {
 public:
  explicit Tables(const EncoderDecoderShape& shape) : shape_(shape), output_(output_of(shape)) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor& source_BS = batch.tensor(input_of(output_.modality));
    const at::Tensor target_BT = decoder_input(batch, *output_.target, context);
    const at::Tensor x_BSC = embedded(source_BS, "source", context),
                     y_BTC = embedded(target_BT, "target", context);
    nn::Outcome out = {.flow = {.diff = {x_BSC, y_BTC}}};
    begin_pool(shape_, /*decoder=*/false, x_BSC.size(0), context, out.flow);
    return out;
  }

 private:
  [[nodiscard]] at::Tensor embedded(const at::Tensor& ids,
                                    const char* site,
                                    nn::StepContext& context) const {
    return nn::dropout(nn::embedding(ids, *table_, context),
                       context.dropout(site, shape_.outer_dropout()));
  }

  EncoderDecoderShape shape_;
  TrunkOutput output_;
  Param* table_ = nullptr;
};

/// True if there is nothing to encode: in generation, after the first token.
bool is_empty(const at::Tensor& x_BSC) {
  return x_BSC.size(1) == 0;
}

class EncoderLayer final : public nn::Block, public nn::HasExperts {
 public:
  EncoderLayer(const EncoderDecoderShape& shape, std::int64_t layer)
      : shape_(shape),
        attention_(self_attention_of(shape, /*decoder=*/false)),
        feed_forward_(shape, /*decoder=*/false, layer),
        attention_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    attention_norm_.declare(params, "layer.0.layer_norm", shape_.hidden_size);
    attention_.declare(params);
    mlp_norm_.declare(params, "layer.1.layer_norm", shape_.hidden_size);
    feed_forward_.network().declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override {
    return feed_forward_.network().grid_obstacle();
  }
  [[nodiscard]] nn::HasExperts::Router router() const override {
    return feed_forward_.network().router();
  }
  [[nodiscard]] bool exchanges() const override { return feed_forward_.network().exchanges(); }
  nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) override {
    // Ranks with samples have nothing to encode after the first token either.
    if (context.mode() == nn::Mode::Decode) return {};
    return feed_forward_.idle(inputs, context);
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double p = shape_.dropout;
    const at::Tensor &x_BSC = in.diff.at(0), &target_BTC = in.diff.at(1);
    if (is_empty(x_BSC)) return {.flow = std::move(in)};
    const nn::Normed begin = attention_norm_.residual(x_BSC, context);
    const at::Tensor a_BSC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        mlp_norm_.residual(begin.x_BTC, context, a_BSC, context.dropout("attention_output", p));
    nn::Outcome out;
    const at::Tensor f_BSC = feed_forward_(middle.normed_BTC, in, context, out);
    insert_first(
        out, nn::add_dropout(middle.x_BTC, f_BSC, context.dropout("mlp_output", p)), target_BTC);
    return out;
  }

 private:
  EncoderDecoderShape shape_;
  SelfAttention attention_;
  StackFeedForward feed_forward_;
  Norm attention_norm_, mlp_norm_;
};

/// The encoder's last norm; after it the target is the first tensor of the flow.
class EncoderEnd final : public nn::Block {
 public:
  explicit EncoderEnd(const EncoderDecoderShape& shape) : shape_(shape), norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, "encoder.final_layer_norm", shape_.hidden_size, kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor &x_BSC = in.diff.at(0), &target_BTC = in.diff.at(1);
    if (is_empty(x_BSC)) return {.flow = {.diff = {target_BTC, x_BSC}}};
    const at::Tensor memory_BSC =
        nn::dropout(norm_(x_BSC, context), context.dropout("output", shape_.outer_dropout()));
    nn::Outcome out = {.flow = {.diff = {target_BTC, memory_BSC}}};
    begin_pool(shape_, /*decoder=*/true, target_BTC.size(0), context, out.flow);
    return out;
  }

 private:
  EncoderDecoderShape shape_;
  Norm norm_;
};

class DecoderLayer final : public nn::Block, public nn::HasExperts {
 public:
  DecoderLayer(const EncoderDecoderShape& shape, std::int64_t layer)
      : shape_(shape),
        attention_(self_attention_of(shape, /*decoder=*/true)),
        cross_(cross_attention_of(shape)),
        feed_forward_(shape, /*decoder=*/true, layer),
        attention_norm_(norm_of(shape)),
        cross_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    const std::int64_t C = shape_.hidden_size;
    attention_norm_.declare(params, "layer.0.layer_norm", C);
    attention_.declare(params);
    cross_norm_.declare(params, "layer.1.layer_norm", C);
    cross_.declare(params);
    mlp_norm_.declare(params, "layer.2.layer_norm", C);
    feed_forward_.network().declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override {
    return feed_forward_.network().grid_obstacle();
  }
  [[nodiscard]] nn::HasExperts::Router router() const override {
    return feed_forward_.network().router();
  }
  [[nodiscard]] bool exchanges() const override { return feed_forward_.network().exchanges(); }
  nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) override {
    return feed_forward_.idle(inputs, context);
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double p = shape_.dropout;
    const at::Tensor &y_BTC = in.diff.at(0), &memory_BSC = in.diff.at(1);
    const nn::Normed begin = attention_norm_.residual(y_BTC, context);
    const at::Tensor a_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        cross_norm_.residual(begin.x_BTC, context, a_BTC, context.dropout("attention_output", p));
    const at::Tensor c_BTC = cross_(middle.normed_BTC, memory_BSC, batch, *this, context);
    const nn::Normed last = mlp_norm_.residual(
        middle.x_BTC, context, c_BTC, context.dropout("cross_attention_output", p));
    nn::Outcome out;
    const at::Tensor f_BTC = feed_forward_(last.normed_BTC, in, context, out);
    insert_first(
        out, nn::add_dropout(last.x_BTC, f_BTC, context.dropout("mlp_output", p)), memory_BSC);
    return out;
  }

 private:
  EncoderDecoderShape shape_;
  SelfAttention attention_;
  CrossAttention cross_;
  StackFeedForward feed_forward_;
  Norm attention_norm_, cross_norm_, mlp_norm_;
};

template <class Layer>
void add_layers(Trunk& trunk,
                const char* stack,
                std::int64_t count,
                const EncoderDecoderShape& shape) {
  for (std::int64_t i = 0; i < count; ++i) {
    trunk.blocks.push_back({fmt::format("{}.block.{}", stack, i),
                            [shape, i] { return std::make_unique<Layer>(shape, i); }});
  }
}

}  // namespace

std::int64_t EncoderDecoderShape::num_parameters() const {
  const std::int64_t C = hidden_size, attention = 4 * C * num_heads * head_dim,
                     mlp = (gated ? 3 : 2) * C * ffn_hidden_size;
  std::int64_t of_experts = 0;  // more than the MLPs that they replace
  for (const auto* const experts : {&encoder_experts, &decoder_experts}) {
    if (const std::int64_t sparse = sparse_layers(*experts); sparse > 0)
      of_experts += sparse * (size_of((*experts)->spec).total - mlp);
  }
  return of_experts + (tie_embeddings ? 1 : 2) * vocab_size * C +
         num_layers * (attention + mlp + 2 * C) +
         num_decoder_layers * (2 * attention + mlp + 3 * C) + 2 * C + 2 * buckets * num_heads;
}

std::int64_t EncoderDecoderShape::inactive_parameters() const {
  std::int64_t out = 0;
  for (const auto* const experts : {&encoder_experts, &decoder_experts}) {
    const std::int64_t sparse = sparse_layers(*experts);
    if (sparse == 0) continue;
    const FeedForward::Size size = size_of((*experts)->spec);
    out += sparse * (size.total - size.active);
  }
  return out;
}

Trunk encoder_decoder_trunk(const EncoderDecoderShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back({"shared", [shape] { return std::make_unique<Tables>(shape); }});
  add_layers<EncoderLayer>(trunk, "encoder", shape.num_layers, shape);
  trunk.blocks.push_back(
      {"encoder.final", [shape] { return std::make_unique<EncoderEnd>(shape); }});
  add_layers<DecoderLayer>(trunk, "decoder", shape.num_decoder_layers, shape);
  return trunk;
}

}  // namespace tessera::models
