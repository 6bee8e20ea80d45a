// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/models/objective.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/activation.h"

// Legend: B batch, T tokens, C embed, F ffn, H heads, G heads of keys and values, K channels of a
// head.
namespace tessera::models {

namespace {

using enum LogicalAxis;

NormSpec norm_of(const LlamaShape& shape) {
  return {NormKind::RmsNorm, shape.rms_norm_eps};
}

TrunkOutput output_of(const LlamaShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "norm",
      .vocabulary = {"embed_tokens.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
  };
}

SelfAttentionSpec attention_of(const LlamaShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.kv_heads(),
      .head_dim = shape.head_channels(),
      .qkv_name = "self_attn.qkv_proj",
      .output_name = "self_attn.o_proj",
      .qkv_bias = shape.attention_bias,
      .output_bias = shape.attention_bias,
      .qkv_init = init,
      .output_init = init,
      .dropout = shape.attention_dropout,
      .rotary_frequencies =
          ops::rotary_frequencies(shape.head_channels(), shape.rope_theta, shape.rope_scaling),
      .max_positions = shape.max_positions,
  };
}

class TokenEmbedding final : public nn::Block {
 public:
  explicit TokenEmbedding(const LlamaShape& shape) : shape_(shape) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_of(shape_)); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  LlamaShape shape_;
  Param* table_ = nullptr;
};

/// down(activation(gate(h)) * up(h)).
class GatedMlp {
 public:
  explicit GatedMlp(const LlamaShape& shape)
      : shape_(shape), activation_(ops::activation_from_name(shape.activation)) {}

  void declare(nn::Params& params) {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size;
    const Init init = Init::normal(shape_.init_std);
    gate_up_weight_ = params.add("mlp.gate_up_proj.weight",
                                 {2, F, C},
                                 {None, Ffn, Embed},
                                 init,
                                 {.matrix_shape = {2 * F, C}});
    if (shape_.mlp_bias) {
      gate_up_bias_ = params.add(
          "mlp.gate_up_proj.bias", {2, F}, {None, Ffn}, Init::zeros(), {.matrix_shape = {2 * F}});
    }
    down_weight_ = params.add("mlp.down_proj.weight", {C, F}, {Embed, Ffn}, init);
    if (shape_.mlp_bias) down_bias_ = params.add("mlp.down_proj.bias", {C}, {Embed}, Init::zeros());
  }

  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC, nn::StepContext& context) const {
    const at::Tensor f_BTF =
        nn::gated(nn::linear(h_BTC, *gate_up_weight_, gate_up_bias_, context), activation_);
    return nn::linear(f_BTF, *down_weight_, down_bias_, context);
  }

 private:
  LlamaShape shape_;
  ops::Activation activation_;
  Param* gate_up_weight_ = nullptr;
  Param* gate_up_bias_ = nullptr;
  Param* down_weight_ = nullptr;
  Param* down_bias_ = nullptr;
};

class DecoderLayer final : public nn::Block {
 public:
  explicit DecoderLayer(const LlamaShape& shape)
      : hidden_size_(shape.hidden_size),
        attention_(attention_of(shape)),
        mlp_(shape),
        input_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    input_norm_.declare(params, "input_layernorm", hidden_size_);
    attention_.declare(params);
    mlp_norm_.declare(params, "post_attention_layernorm", hidden_size_);
    mlp_.declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const nn::Normed begin = input_norm_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle = mlp_norm_.residual(begin.x_BTC, context, y_BTC);
    return {.flow = {.diff = {middle.x_BTC + mlp_(middle.normed_BTC, context)}}};
  }

 private:
  std::int64_t hidden_size_;
  SelfAttention attention_;
  GatedMlp mlp_;
  Norm input_norm_, mlp_norm_;
};

template <class B>
nn::BlockSpec block(std::string name, const LlamaShape& shape) {
  return {std::move(name), [shape] { return std::make_unique<B>(shape); }};
}

}  // namespace

std::int64_t LlamaShape::num_parameters() const {
  const std::int64_t C = hidden_size, F = ffn_hidden_size, H = num_heads, G = kv_heads(),
                     K = head_channels();
  const std::int64_t attention =
                         (2 * H + 2 * G) * K * C + (attention_bias ? (H + 2 * G) * K + C : 0),
                     mlp = 3 * F * C + (mlp_bias ? 2 * F + C : 0), norms = 2 * C;
  return num_layers * (attention + mlp + norms) + C + (tie_embeddings ? 1 : 2) * vocab_size * C;
}

Trunk llama_trunk(const LlamaShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(block<TokenEmbedding>("embed_tokens", shape));
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block<DecoderLayer>(fmt::format("layers.{}", i), shape));
  return trunk;
}

nn::Model llama(const LlamaShape& shape) {
  return with_objective(llama_trunk(shape), "causal_lm");
}

}  // namespace tessera::models
