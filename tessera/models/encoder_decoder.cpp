// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/encoder_decoder.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/cross_attention.h"
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
    return {.flow = {.diff = {x_BSC, y_BTC}}};
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

class EncoderLayer final : public nn::Block {
 public:
  explicit EncoderLayer(const EncoderDecoderShape& shape)
      : shape_(shape),
        attention_(self_attention_of(shape, /*decoder=*/false)),
        feed_forward_(make_feed_forward(mlp_of(shape, 1))),
        attention_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    attention_norm_.declare(params, "layer.0.layer_norm", shape_.hidden_size);
    attention_.declare(params);
    mlp_norm_.declare(params, "layer.1.layer_norm", shape_.hidden_size);
    feed_forward_->declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double p = shape_.dropout;
    const at::Tensor &x_BSC = in.diff.at(0), &target_BTC = in.diff.at(1);
    if (is_empty(x_BSC)) return {.flow = std::move(in)};
    const nn::Normed begin = attention_norm_.residual(x_BSC, context);
    const at::Tensor a_BSC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        mlp_norm_.residual(begin.x_BTC, context, a_BSC, context.dropout("attention_output", p));
    nn::Outcome out;
    const at::Tensor f_BSC = (*feed_forward_)(middle.normed_BTC, context, out.terms);
    out.flow.diff = {nn::add_dropout(middle.x_BTC, f_BSC, context.dropout("mlp_output", p)),
                     target_BTC};
    return out;
  }

 private:
  EncoderDecoderShape shape_;
  SelfAttention attention_;
  std::unique_ptr<FeedForward> feed_forward_;
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
    return {.flow = {.diff = {target_BTC, memory_BSC}}};
  }

 private:
  EncoderDecoderShape shape_;
  Norm norm_;
};

class DecoderLayer final : public nn::Block {
 public:
  explicit DecoderLayer(const EncoderDecoderShape& shape)
      : shape_(shape),
        attention_(self_attention_of(shape, /*decoder=*/true)),
        cross_(cross_attention_of(shape)),
        feed_forward_(make_feed_forward(mlp_of(shape, 2))),
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
    feed_forward_->declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

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
    const at::Tensor f_BTC = (*feed_forward_)(last.normed_BTC, context, out.terms);
    out.flow.diff = {nn::add_dropout(last.x_BTC, f_BTC, context.dropout("mlp_output", p)),
                     memory_BSC};
    return out;
  }

 private:
  EncoderDecoderShape shape_;
  SelfAttention attention_;
  CrossAttention cross_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm attention_norm_, cross_norm_, mlp_norm_;
};

template <class Layer>
void add_layers(Trunk& trunk,
                const char* stack,
                std::int64_t count,
                const EncoderDecoderShape& shape) {
  for (std::int64_t i = 0; i < count; ++i) {
    trunk.blocks.push_back(
        {fmt::format("{}.block.{}", stack, i), [shape] { return std::make_unique<Layer>(shape); }});
  }
}

}  // namespace

std::int64_t EncoderDecoderShape::num_parameters() const {
  const std::int64_t C = hidden_size, attention = 4 * C * num_heads * head_dim,
                     mlp = (gated ? 3 : 2) * C * ffn_hidden_size;
  return (tie_embeddings ? 1 : 2) * vocab_size * C + num_layers * (attention + mlp + 2 * C) +
         num_decoder_layers * (2 * attention + mlp + 3 * C) + 2 * C + 2 * buckets * num_heads;
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
