// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2.h"

#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/models/objective.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/activation.h"

// Legend: B batch, T tokens, C embed, F ffn.
namespace tessera::models {

namespace {

using enum LogicalAxis;

using nn::Batch;
using nn::Flow;
using nn::Outcome;
using nn::Params;
using nn::StepContext;

NormSpec norm_of(const Gpt2Shape& shape) {
  return {NormKind::LayerNorm, shape.layer_norm_eps};
}

TrunkOutput output_of(const Gpt2Shape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "ln_f",
      .vocabulary = {"wte.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
  };
}

/// The residual stream adds two projections a layer: their variance is divided by that number.
Init residual_init(const Gpt2Shape& shape) {
  return Init::normal(shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.num_layers)));
}

SelfAttentionSpec attention_of(const Gpt2Shape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.kv_heads(),
      .head_dim = shape.hidden_size / shape.num_heads,
      .qkv_name = "attn.c_attn",
      .output_name = "attn.c_proj",
      .qkv_bias = shape.qkv_bias,
      .output_bias = true,
      .qkv_init = Init::normal(shape.init_std),
      .output_init = residual_init(shape),
      .dropout = shape.attention_dropout,
  };
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const Gpt2Shape& shape) : shape_(shape) {}

  void declare(Params& params) override {
    tokens_ = declare_table(params, output_of(shape_));
    positions_ = params.add("wpe.weight",
                            {shape_.max_positions, shape_.hidden_size},
                            {None, Embed},
                            Init::normal(shape_.init_std),
                            {.without_prefix = true, .role = Role::PositionTable});
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  Outcome forward(Flow /*in*/, const Batch& batch, StepContext& context) override {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    const at::Tensor positions_BT =
        nn::positions(ids_BT, shape_.max_positions, context, document_starts(batch));
    const at::Tensor x_BTC = nn::embedding(ids_BT, *tokens_, context) +
                             nn::embedding(positions_BT, *positions_, context);
    return {.flow = {.diff = {nn::dropout(
                         x_BTC, context.dropout("embedding", shape_.embedding_dropout))}}};
  }

 private:
  Gpt2Shape shape_;
  Param* tokens_ = nullptr;
  Param* positions_ = nullptr;
};

class Layer final : public nn::Block {
 public:
  explicit Layer(const Gpt2Shape& shape)
      : shape_(shape),
        activation_(ops::activation_from_name(shape.activation)),
        attention_(attention_of(shape)),
        ln_1_(norm_of(shape)),
        ln_2_(norm_of(shape)) {}

  void declare(Params& params) override {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size;
    ln_1_.declare(params, "ln_1", C);
    attention_.declare(params);
    ln_2_.declare(params, "ln_2", C);
    fc_weight_ =
        params.add("mlp.c_fc.weight", {F, C}, {Ffn, Embed}, Init::normal(shape_.init_std));
    fc_bias_ = params.add("mlp.c_fc.bias", {F}, {Ffn}, Init::zeros());
    out_weight_ = params.add("mlp.c_proj.weight", {C, F}, {Embed, Ffn}, residual_init(shape_));
    out_bias_ = params.add("mlp.c_proj.bias", {C}, {Embed}, Init::zeros());
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  Outcome forward(Flow in, const Batch& batch, StepContext& context) override {
    const double p = shape_.residual_dropout;
    const nn::Normed begin = ln_1_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        ln_2_.residual(begin.x_BTC, context, y_BTC, context.dropout("attention_output", p));
    const at::Tensor z_BTC = mlp(middle.normed_BTC, context);
    return {
        .flow = {.diff = {nn::add_dropout(middle.x_BTC, z_BTC, context.dropout("mlp_output", p))}}};
  }

 private:
  [[nodiscard]] at::Tensor mlp(const at::Tensor& h_BTC, StepContext& context) const {
    const at::Tensor f_BTF =
        nn::activate(nn::linear(h_BTC, *fc_weight_, fc_bias_, context), activation_);
    return nn::linear(f_BTF, *out_weight_, out_bias_, context);
  }

  Gpt2Shape shape_;
  ops::Activation activation_;
  SelfAttention attention_;
  Norm ln_1_, ln_2_;
  Param* fc_weight_ = nullptr;
  Param* fc_bias_ = nullptr;
  Param* out_weight_ = nullptr;
  Param* out_bias_ = nullptr;
};

template <class B>
nn::BlockSpec block(std::string name, const Gpt2Shape& shape) {
  return {std::move(name), [shape] { return std::make_unique<B>(shape); }};
}

}  // namespace

Trunk gpt2_trunk(const Gpt2Shape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(block<Embedding>("wte", shape));
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block<Layer>(fmt::format("h.{}", i), shape));
  return trunk;
}

nn::Model gpt2(const Gpt2Shape& shape) {
  json::Value options = json::Value::object();
  options["label_smoothing"] = json::Value::number(shape.label_smoothing);
  return with_objective(gpt2_trunk(shape), "causal_lm", options);
}

}  // namespace tessera::models
