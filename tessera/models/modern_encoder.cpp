// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/modern_encoder.h"

#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/models/feed_forward.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed.
namespace tessera::models {
namespace {

TrunkOutput output_of(const ModernShape& shape, HeadSpecs heads) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = shape.norm(),
      .norm_name = "final_norm",
      .vocabulary = {"embeddings.tok_embeddings.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
      .causal = false,
      .init_cutoff = static_cast<float>(shape.init_cutoff),
      .heads = std::move(heads)};
}

class ModernEmbeddings final : public nn::Block {
 public:
  explicit ModernEmbeddings(const ModernShape& shape) : shape_(shape), norm_(shape.norm()) {}

  void declare(nn::Params& params) override {
    words_ = declare_table(params, output_of(shape_, {}));
    norm_.declare(params, "norm", shape_.hidden_size);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC =
        norm_(nn::embedding(batch.tensor("input_ids"), *words_, context), context);
    const ops::DropoutKey key = context.dropout("embedding", shape_.embedding_dropout);
    return {.flow = {.diff = {key.active() ? nn::dropout(x_BTC, key) : x_BTC}}};
  }

 private:
  ModernShape shape_;
  Norm norm_;
  Param* words_ = nullptr;
};

/// x + attention(norm(x)), then x + mlp(norm(x)). The first layer reads the normalized embedding
/// and has no norm before attention.
class ModernLayer final : public nn::Block {
 public:
  ModernLayer(const ModernShape& shape, std::int64_t layer)
      : shape_(shape),
        attention_(attention_of(shape, layer)),
        feed_forward_(make_feed_forward(mlp_of(shape))),
        attention_norm_(layer == 0 ? NormSpec{.kind = NormKind::None} : shape.norm()),
        mlp_norm_(shape.norm()) {}

  void declare(nn::Params& params) override {
    attention_norm_.declare(params, "attn_norm", shape_.hidden_size);
    attention_.declare(params);
    mlp_norm_.declare(params, "mlp_norm", shape_.hidden_size);
    feed_forward_->declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const nn::Normed begin = attention_norm_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle = mlp_norm_.residual(
        begin.x_BTC, context, y_BTC, context.dropout("attention_output", shape_.attention_dropout));
    nn::Outcome out;
    const at::Tensor f_BTC = (*feed_forward_)(middle.normed_BTC, context, out.terms);
    out.flow.diff = {nn::add_dropout(middle.x_BTC, f_BTC, {})};
    return out;
  }

 private:
  static SelfAttentionSpec attention_of(const ModernShape& shape, std::int64_t layer) {
    const std::int64_t channels = shape.head_channels();
    const bool local = shape.local.at(static_cast<std::size_t>(layer));
    const Rotation& rotation = local ? shape.local_rotation : shape.rotation;
    return {.hidden_size = shape.hidden_size,
            .num_heads = shape.num_heads,
            .num_kv_heads = shape.num_heads,
            .head_dim = channels,
            .qkv_name = "attn.Wqkv",
            .output_name = "attn.Wo",
            .qkv_bias = shape.attention_bias,
            .output_bias = shape.attention_bias,
            .qkv_init = Init::truncated(shape.init_std, shape.init_cutoff),
            .output_init = Init::truncated(shape.output_std(), shape.init_cutoff),
            .dropout = shape.attention_dropout,
            .causal = false,
            .rotary_frequencies = rotation.frequencies(channels),
            .max_positions = shape.max_positions,
            .rotary_factor = rotation.factor(),
            .window = local ? shape.local_attention / 2 : 0};
  }

  static MlpSpec mlp_of(const ModernShape& shape) {
    return {.hidden_size = shape.hidden_size,
            .ffn_hidden_size = shape.ffn_hidden_size,
            .input_name = "mlp.Wi",
            .output_name = "mlp.Wo",
            .bias = shape.mlp_bias,
            .input_init = Init::truncated(shape.init_std, shape.init_cutoff),
            .output_init = Init::truncated(shape.output_std(), shape.init_cutoff),
            .activation = shape.activation,
            .gated = true,
            .dropout = shape.mlp_dropout};
  }
  ModernShape shape_;
  SelfAttention attention_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm attention_norm_, mlp_norm_;
};

}  // namespace

double ModernShape::output_std() const {
  return init_std / std::sqrt(2.0 * static_cast<double>(num_layers));
}

Trunk modern_trunk(const ModernShape& shape, HeadSpecs heads) {
  Trunk trunk{.output = output_of(shape, std::move(heads))};
  trunk.blocks.push_back(
      {"embeddings", [shape] { return std::make_unique<ModernEmbeddings>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    trunk.blocks.push_back({fmt::format("layers.{}", i),
                            [shape, i] { return std::make_unique<ModernLayer>(shape, i); }});
  }
  return trunk;
}

}  // namespace tessera::models
