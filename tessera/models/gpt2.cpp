// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"
#include "tessera/ops/cross_entropy.h"

// Legend: B batch, T tokens, C embed, F ffn, H heads, G heads of keys and values, K channels of a
// head, O outputs of the fused projection, V vocabulary.
namespace tessera::models {

namespace {

using nn::Batch;
using nn::Flow;
using nn::Outcome;
using nn::Params;
using nn::StepContext;
using Axes = std::vector<LogicalAxis>;
using enum LogicalAxis;

constexpr Params::Tags kGlobalName = {.without_prefix = true};

Param* token_table(Params& params, const Gpt2Shape& shape) {
  const Shape sizes = {shape.vocab_size, shape.hidden_size};
  const Init init = Init::normal(shape.init_std);
  if (shape.tie_embeddings) return params.tied("wte.weight", sizes, {Vocab, Embed}, init);
  return params.add("wte.weight", sizes, {Vocab, Embed}, init, kGlobalName);
}

struct Norm {
  Param* weight = nullptr;
  Param* bias = nullptr;
  void declare(Params& params,
               const std::string& name,
               std::int64_t channels,
               const Params::Tags& tags = {}) {
    weight = params.add(name + ".weight", {channels}, {Embed}, Init::ones(), tags);
    bias = params.add(name + ".bias", {channels}, {Embed}, Init::zeros(), tags);
  }
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, double eps, StepContext& context) const {
    return nn::layer_norm(x, *weight, *bias, eps, context);
  }
  /// Of x with a branch added, if there is one.
  [[nodiscard]] nn::Normed of_stream(const at::Tensor& x,
                                     double eps,
                                     StepContext& context,
                                     const at::Tensor& branch = {},
                                     const ops::DropoutKey& key = {}) const {
    return nn::residual_layer_norm(x, branch, key, *weight, *bias, eps, context);
  }
};

/// Where documents begin, if they are kept apart.
at::Tensor starts_of(const Batch& batch) {
  return batch.has("document_starts") ? batch.tensor("document_starts") : at::Tensor();
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const Gpt2Shape& shape) : shape_(shape) {}

  void declare(Params& params) override {
    tokens_ = token_table(params, shape_);
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
        nn::positions(ids_BT, shape_.max_positions, context, starts_of(batch));
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
      : shape_(shape), activation_(ops::activation_from_name(shape.activation)) {}

  void declare(Params& params) override {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size, H = shape_.num_heads,
                       K = C / H;
    const Init init = Init::normal(shape_.init_std);
    // The residual stream adds two projections a layer: their variance is divided by that number.
    const Init residual =
        Init::normal(shape_.init_std / std::sqrt(2.0 * static_cast<double>(shape_.num_layers)));
    ln_1_.declare(params, "ln_1", C);
    const std::int64_t G = shape_.kv_heads(), group = std::max<std::int64_t>(1, H / G),
                       O = (H + 2 * G) * K;
    const bool shared = group > 1;
    qkv_weight_ =
        params.add("attn.c_attn.weight",
                   shared ? Shape{G, group + 2, K, C} : Shape{3, H, K, C},
                   shared ? Axes{KvHeads, None, None, Embed} : Axes{None, Heads, None, Embed},
                   init,
                   {.matrix_shape = {O, C}});
    if (shape_.qkv_bias) {
      qkv_bias_ = params.add("attn.c_attn.bias",
                             shared ? Shape{G, group + 2, K} : Shape{3, H, K},
                             shared ? Axes{KvHeads, None, None} : Axes{None, Heads, None},
                             Init::zeros(),
                             {.matrix_shape = {O}});
    }
    proj_weight_ = params.add("attn.c_proj.weight",
                              {C, C},
                              {Embed, shared ? KvHeads : Heads},
                              residual,
                              {.unit = group * K});
    proj_bias_ = params.add("attn.c_proj.bias", {C}, {Embed}, Init::zeros());
    ln_2_.declare(params, "ln_2", C);
    fc_weight_ = params.add("mlp.c_fc.weight", {F, C}, {Ffn, Embed}, init);
    fc_bias_ = params.add("mlp.c_fc.bias", {F}, {Ffn}, Init::zeros());
    out_weight_ = params.add("mlp.c_proj.weight", {C, F}, {Embed, Ffn}, residual);
    out_bias_ = params.add("mlp.c_proj.bias", {C}, {Embed}, Init::zeros());
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  Outcome forward(Flow in, const Batch& batch, StepContext& context) override {
    const double eps = shape_.layer_norm_eps, p = shape_.residual_dropout;
    const nn::Normed begin = ln_1_.of_stream(in.diff.at(0), eps, context);
    const at::Tensor y_BTC = attention(begin.normed_BTC, batch, context);
    const nn::Normed middle =
        ln_2_.of_stream(begin.x_BTC, eps, context, y_BTC, context.dropout("attention_output", p));
    const at::Tensor z_BTC = mlp(middle.normed_BTC, context);
    return {
        .flow = {.diff = {nn::add_dropout(middle.x_BTC, z_BTC, context.dropout("mlp_output", p))}}};
  }

 private:
  [[nodiscard]] at::Tensor attention(const at::Tensor& h_BTC,
                                     const Batch& batch,
                                     StepContext& context) const {
    const nn::Qkv qkv =
        nn::split_qkv(nn::linear(h_BTC, *qkv_weight_, qkv_bias_, context), *qkv_weight_);
    ops::AttentionArgs args;
    args.first_head = qkv.first_head;
    if (batch.has("attention_mask")) args.mask_BS = batch.tensor("attention_mask");
    args.starts_BT = starts_of(batch);
    args.dropout = context.dropout("attention", shape_.attention_dropout);
    const at::Tensor y_BHTK =
        nn::attention(qkv.q_BHTK, qkv.k_BGTK, qkv.v_BGTK, std::move(args), *this, context);
    return nn::linear(nn::merge_heads(y_BHTK), *proj_weight_, proj_bias_, context);
  }

  [[nodiscard]] at::Tensor mlp(const at::Tensor& h_BTC, StepContext& context) const {
    const at::Tensor f_BTF =
        nn::activate(nn::linear(h_BTC, *fc_weight_, fc_bias_, context), activation_);
    return nn::linear(f_BTF, *out_weight_, out_bias_, context);
  }

  Gpt2Shape shape_;
  ops::Activation activation_;
  Norm ln_1_, ln_2_;
  Param* qkv_weight_ = nullptr;
  Param* qkv_bias_ = nullptr;
  Param* proj_weight_ = nullptr;
  Param* proj_bias_ = nullptr;
  Param* fc_weight_ = nullptr;
  Param* fc_bias_ = nullptr;
  Param* out_weight_ = nullptr;
  Param* out_bias_ = nullptr;
};

class Head final : public nn::Objective {
 public:
  explicit Head(const Gpt2Shape& shape) : shape_(shape) {}

  void declare(Params& params) override {
    norm_.declare(params, "ln_f", shape_.hidden_size, kGlobalName);
    weight_ = shape_.tie_embeddings ? token_table(params, shape_)
                                    : params.add("lm_head.weight",
                                                 {shape_.vocab_size, shape_.hidden_size},
                                                 {Vocab, Embed},
                                                 Init::normal(shape_.init_std),
                                                 kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  Outcome forward(Flow in, const Batch& batch, StepContext& context) override {
    at::Tensor x_BTC = in.diff.at(0);
    const bool generating =
        context.mode() == nn::Mode::Prefill || context.mode() == nn::Mode::Decode;
    if (generating && !context.want_logits) x_BTC = x_BTC.narrow(1, x_BTC.size(1) - 1, 1);
    x_BTC = norm_(x_BTC, shape_.layer_norm_eps, context);
    if (generating || !batch.has("labels")) {
      return {.outputs = {{"logits", nn::vocab_logits(x_BTC, *weight_, context)}}};
    }
    // Evaluation reports the plain cross-entropy.
    const double smoothing = context.training() ? shape_.label_smoothing : 0.0;
    const nn::VocabLoss loss =
        nn::vocab_loss(x_BTC, *weight_, batch.tensor("labels"), smoothing, context);
    Outcome out = {.terms = {{.name = "loss", .sum = loss.sum}}};
    if (loss.logits.defined()) out.outputs["logits"] = loss.logits;
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const Batch& batch) const override {
    const at::Tensor& labels = batch.tensor("labels");
    if (labels.is_meta()) return {static_cast<double>(labels.numel())};
    return {labels.ne(ops::kIgnoreLabel).sum().item<double>()};
  }
  [[nodiscard]] std::int64_t samples_at_once(const Batch& batch) const override {
    // All ranks in the same steps, whatever the size of their shares.
    return ops::samples_of_logits(batch.tensor("labels").size(1),
                                  weight_->info().room_numel() / shape_.hidden_size);
  }

 private:
  Gpt2Shape shape_;
  Norm norm_;
  Param* weight_ = nullptr;
};

template <class B>
nn::BlockSpec block(std::string name, const Gpt2Shape& shape) {
  return {std::move(name), [shape] { return std::make_unique<B>(shape); }};
}

}  // namespace

nn::Model gpt2(const Gpt2Shape& shape) {
  nn::Model model;
  model.blocks.push_back(block<Embedding>("wte", shape));
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    model.blocks.push_back(block<Layer>(fmt::format("h.{}", i), shape));
  model.blocks.push_back(block<Head>("head", shape));
  return model;
}

}  // namespace tessera::models
