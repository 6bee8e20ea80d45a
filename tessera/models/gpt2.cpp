// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/experts.h"
#include "tessera/models/family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/gpt_names.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/module_order.h"
#include "tessera/models/moe_options.h"
#include "tessera/models/objective.h"
#include "tessera/models/position_embedding.h"
#include "tessera/models/transformer_layer.h"
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
      .heads = {.token = HeadSpec{.dropout = shape.classifier_dropout,
                                  .output = "classifier",
                                  .output_bias = "classifier.bias"}},
  };
}

/// Each layer adds two projections to the residual stream; the variance is divided by their total
/// number.
Init residual_init(const Gpt2Shape& shape) {
  return Init::normal(shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.num_layers)));
}

/// The factor of the scores of a layer; 0: the usual one.
double attention_scale(const Gpt2Shape& shape, std::int64_t layer) {
  if (shape.scale_attention && !shape.scale_by_layer) return 0.0;
  const std::int64_t channels = shape.hidden_size / shape.num_heads;
  const double scale = shape.scale_attention ? 1.0 / std::sqrt(static_cast<double>(channels)) : 1.0;
  return shape.scale_by_layer ? scale / static_cast<double>(layer + 1) : scale;
}

SelfAttentionSpec attention_of(const Gpt2Shape& shape, std::int64_t layer) {
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.kv_heads(),
      .head_dim = shape.hidden_size / shape.num_heads,
      .qkv_name = "attn.c_attn",
      .output_name = "attn.c_proj",
      .qkv_bias = shape.qkv_bias && shape.bias,
      .output_bias = shape.bias,
      .qkv_init = Init::normal(shape.init_std),
      .output_init = residual_init(shape),
      .dropout = shape.attention_dropout,
      .scale = attention_scale(shape, layer),
      .qk_norm = shape.qk_norm ? QkNorm::LayerPerHead : QkNorm::None,
      .qk_norm_eps = shape.layer_norm_eps,
      .q_norm_name = "attn.q_norm",
      .k_norm_name = "attn.k_norm",
  };
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const Gpt2Shape& shape)
      : shape_(shape),
        positions_({.name = "wpe.weight",
                    .max_positions = shape.max_positions,
                    .hidden_size = shape.hidden_size,
                    .init = Init::normal(shape.init_std)}) {}

  void declare(Params& params) override {
    tokens_ = declare_table(params, output_of(shape_));
    positions_.declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  Outcome forward(Flow /*in*/, const Batch& batch, StepContext& context) override {
    const at::Tensor tokens_BTC = nn::embedding(batch.tensor("input_ids"), *tokens_, context);
    const at::Tensor x_BTC = tokens_BTC + positions_(batch, context);
    return {.flow = {.diff = {nn::dropout(
                         x_BTC, context.dropout("embedding", shape_.embedding_dropout))}}};
  }

 private:
  Gpt2Shape shape_;
  Param* tokens_ = nullptr;
  PositionEmbedding positions_;
};

FeedForwardSpec feed_forward_of(const Gpt2Shape& shape, std::int64_t layer) {
  if (shape.is_sparse(layer)) return shape.experts.value();
  return MlpSpec{.hidden_size = shape.hidden_size,
                 .ffn_hidden_size = shape.ffn_hidden_size,
                 .input_name = "mlp.c_fc",
                 .output_name = "mlp.c_proj",
                 .bias = shape.bias,
                 .input_init = Init::normal(shape.init_std),
                 .output_init = residual_init(shape),
                 .activation = shape.activation,
                 .gated = shape.gated};
}

LayerSpec layer_of(const Gpt2Shape& shape, std::int64_t layer) {
  return {
      .attention = attention_of(shape, layer),
      .mlp = feed_forward_of(shape, layer),
      .norm = norm_of(shape),
      .attention_norm_name = "ln_1",
      .mlp_norm_name = "ln_2",
      .residual_dropout = shape.residual_dropout,
  };
}

}  // namespace

Trunk gpt2_trunk(const Gpt2Shape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back({"wte", [shape] { return std::make_unique<Embedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    trunk.blocks.push_back({fmt::format("h.{}", i), [spec = layer_of(shape, i)] {
                              return std::make_unique<TransformerLayer>(spec);
                            }});
  }
  return trunk;
}

nn::Model gpt2(const Gpt2Shape& shape) {
  json::Value options = json::Value::object();
  options["label_smoothing"] = json::Value::number(shape.label_smoothing);
  return with_objective(gpt2_trunk(shape), "causal_lm", options);
}

std::int64_t Gpt2Shape::num_parameters() const {
  const std::int64_t C = hidden_size, F = ffn_hidden_size;
  const std::int64_t outputs = C + 2 * (C / std::max<std::int64_t>(num_heads, 1)) * kv_heads();
  const std::int64_t B = bias ? 1 : 0, inputs = (gated ? 2 : 1) * F;
  const std::int64_t head = C / std::max<std::int64_t>(num_heads, 1),
                     norms = 4 * C + (qk_norm ? 4 * head : 0),
                     qkv = outputs * (C + (qkv_bias ? B : 0)), projection = C * C + B * C;
  const std::int64_t sparse_layers = std::count(sparse.begin(), sparse.end(), true);
  std::int64_t mlps = (num_layers - sparse_layers) * (inputs * (C + B) + C * F + B * C);
  if (sparse_layers > 0) mlps += sparse_layers * size_of(experts.value()).total;
  const std::int64_t tables = (tie_embeddings ? 1 : 2) * vocab_size * C + max_positions * C;
  return num_layers * (norms + qkv + projection) + mlps + tables + 2 * C;
}

std::int64_t Gpt2Shape::inactive_parameters() const {
  const std::int64_t sparse_layers = std::count(sparse.begin(), sparse.end(), true);
  if (sparse_layers == 0) return 0;
  const FeedForward::Size size = size_of(experts.value());
  return sparse_layers * (size.total - size.active);
}

namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("nano", 4, 128, 4),
      nano("mini", 6, 384, 6),
      {"gpt2-small", 12, 768, 12},
      {"gpt2-medium", 24, 1024, 16},
      {"gpt2-large", 36, 1280, 20},
      {"gpt2-xl", 48, 1600, 25},
      {"gpt2-exlarge", 48, 1600, 32},
      {"gpt3", 96, 12288, 96, 0, 0, 2048},
  };
  return all;
}

struct Gpt2Options final : FamilyOptions {
  std::optional<double> embedding_dropout, attention_dropout, residual_dropout, classifier_dropout;
  bool qkv_bias = true, bias = true, scale_attention = true, scale_attention_by_layer = false;
  bool qk_norm = false;
  std::string activation = "gelu_tanh", feed_forward = "dense";
  double layer_norm_eps = 1e-5;
  double mlp_ratio = 4.0;
  MoeOptions moe;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gpt2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_sizes(
        fields,
        {.presets = names_of(presets()),
         .preset_default = "nano if no size is given",
         .positions_default = "data.sequence_length, or 1024 if neither is given; 2048 for gpt3",
         .ffn_default = "mlp_ratio x hidden_size"});
    describe_dropout(fields, "Dropout probability of embedding, attention and residual dropout.");
    const auto part = [&](const char* key, std::optional<double>& member, const char* text) {
      fields.field(
          key, member, {.text = text, .min = 0, .max = kMaxDropout, .default_text = "dropout"});
    };
    part("embedding_dropout", embedding_dropout, "Dropout probability after the embedding.");
    part("attention_dropout", attention_dropout, "Dropout probability on attention weights.");
    part("residual_dropout",
         residual_dropout,
         "Dropout probability on the outputs of attention and MLP.");
    describe_classifier_dropout(fields, classifier_dropout, "0.1");
    fields.field(
        "qkv_bias", qkv_bias, {.text = "Whether the query, key and value projection has a bias."});
    fields.field("bias",
                 bias,
                 {.text = "Whether the projections of the layers have biases; norms always do."});
    fields.field("qk_norm",
                 qk_norm,
                 {.text = "Whether the queries and keys of each head have layer norms."});
    fields.field("scale_attention",
                 scale_attention,
                 {.text = "Whether attention scores are divided by the square root of a head's "
                          "channels."});
    fields.field("scale_attention_by_layer",
                 scale_attention_by_layer,
                 {.text = "Whether attention scores of layer i, the first one being 1, are also "
                          "divided by i."});
    describe_tie(fields);
    fields.field("feed_forward",
                 feed_forward,
                 {.text = "The MLP, and experts: two projections, or three with a gate.",
                  .choices = {"dense", "gated"}});
    fields.field("activation",
                 activation,
                 {.text = "Activation function of the MLP or of its gate.",
                  .choices = ops::activation_names()});
    fields.field("layer_norm_eps",
                 layer_norm_eps,
                 {.text = "Epsilon added to the variance in layer norms.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    fields.field("mlp_ratio",
                 mlp_ratio,
                 {.text = "Ratio of the MLP's hidden width to hidden_size.",
                  .min = 0,
                  .max = 1000,
                  .above_min = true});
    describe_init(
        fields,
        "Standard deviation of initial weights; residual projections divide it by sqrt(2 x "
        "num_layers).");
    describe_label_smoothing(fields);
    describe_from(fields);
    fields.section("moe", moe, kMoeSentence);
  }
};

void set_rest(const Gpt2Options& options, Gpt2Shape& shape, Checks& checks) {
  shape.embedding_dropout = options.embedding_dropout.value_or(options.dropout);
  shape.attention_dropout = options.attention_dropout.value_or(options.dropout);
  shape.residual_dropout = options.residual_dropout.value_or(options.dropout);
  shape.classifier_dropout = options.classifier_dropout.value_or(kClassifierDropout);
  shape.qkv_bias = options.qkv_bias;
  shape.bias = options.bias;
  shape.gated = options.feed_forward == "gated";
  shape.qk_norm = options.qk_norm;
  shape.scale_attention = options.scale_attention;
  shape.scale_by_layer = options.scale_attention_by_layer;
  shape.tie_embeddings = options.tie_embeddings;
  shape.layer_norm_eps = options.layer_norm_eps;
  shape.init_std = options.init_std;
  shape.label_smoothing = options.label_smoothing;
  try {
    ops::activation_from_name(options.activation);
    shape.activation = options.activation;
  } catch (const Error& error) {
    checks.require(false, "model.activation", error.what(), error.fix());
  }
}

MoeModel moe_model(const Gpt2Shape& shape) {
  return {.num_layers = shape.num_layers,
          .hidden_size = shape.hidden_size,
          .ffn_hidden_size = shape.ffn_hidden_size,
          .activation = shape.activation,
          .gated = shape.gated,
          .bias = shape.bias,
          .init_std = shape.init_std};
}

/// Sets the experts and the layers that have them.
void set_experts(const MoeOptions& moe, Gpt2Shape& shape, Checks& checks) {
  if (moe.num_experts == 0) return;
  check_experts(moe, moe_model(shape), checks);
  checks.require(!moe.losses.pooled_layers,
                 "model.moe.losses.pooled_layers",
                 "the layers of GPT-2 pass nothing on but the residual stream",
                 "set it to false, or use another family");
  shape.experts = experts_of(moe, moe_model(shape));
  shape.experts->output_init = residual_init(shape);
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    shape.sparse.push_back(moe.sparse(i));
}

json::Value description_of(const Gpt2Shape& shape, const MoeOptions& moe) {
  Gpt2Options out;
  out.moe = moe;
  out.num_layers = shape.num_layers;
  out.hidden_size = shape.hidden_size;
  out.num_heads = shape.num_heads;
  if (shape.num_kv_heads != shape.num_heads) out.num_kv_heads = shape.num_kv_heads;
  out.vocab_size = shape.vocab_size;
  out.max_positions = shape.max_positions;
  out.ffn_hidden_size = shape.ffn_hidden_size;
  out.mlp_ratio =
      static_cast<double>(shape.ffn_hidden_size) / static_cast<double>(shape.hidden_size);
  out.embedding_dropout = shape.embedding_dropout;
  out.attention_dropout = shape.attention_dropout;
  out.residual_dropout = shape.residual_dropout;
  out.qkv_bias = shape.qkv_bias;
  out.bias = shape.bias;
  out.feed_forward = shape.gated ? "gated" : "dense";
  out.qk_norm = shape.qk_norm;
  out.scale_attention = shape.scale_attention;
  out.scale_attention_by_layer = shape.scale_by_layer;
  out.tie_embeddings = shape.tie_embeddings;
  out.activation = shape.activation;
  out.layer_norm_eps = shape.layer_norm_eps;
  out.init_std = shape.init_std;
  out.label_smoothing = shape.label_smoothing;
  ModelOptions whole("gpt2", std::make_unique<Gpt2Options>(std::move(out)));
  json::Value description = config::write(whole);
  leave_out_usual_experts(description, moe.num_experts);
  // A model without these forms is described as before there were any.
  std::erase_if(description.members(), [&](const auto& member) {
    return (member.first == "bias" && shape.bias) ||
           (member.first == "feed_forward" && !shape.gated) ||
           (member.first == "qk_norm" && !shape.qk_norm);
  });
  return description;
}

Resolved resolve_gpt2(const Gpt2Options& options,
                      std::int64_t tokenizer_size,
                      std::optional<std::int64_t> sequence_length,
                      config::Problems& problems,
                      const config::Origins& origins) {
  Checks checks(problems, origins);
  Gpt2Shape shape;
  const std::string otherwise = presets().front().name;
  const Preset* preset = find_preset(options, presets(), otherwise, checks);
  set_layers(options, preset, shape, checks);
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(
      std::llround(options.mlp_ratio * static_cast<double>(shape.hidden_size)));
  check_heads(shape, checks);
  checks.require(
      shape.ffn_hidden_size >= 1,
      "model.mlp_ratio",
      fmt::format("the hidden layer of the MLP would have {} channels", shape.ffn_hidden_size),
      "raise mlp_ratio, or give ffn_hidden_size");
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks);
  set_rest(options, shape, checks);
  set_experts(options.moe, shape, checks);
  Gpt2Shape possible = shape;
  make_possible(possible);
  if (std::ssize(possible.sparse) != possible.num_layers) possible.sparse.clear();
  Resolved out = {.description = description_of(shape, options.moe),
                  .trunk = gpt2_trunk(possible),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_parameters = shape.num_parameters(),
                  .inactive_parameters = shape.inactive_parameters(),
                  .num_layers = shape.num_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_kv_heads,
                  .tied_head = shape.tie_embeddings};
  if (shape.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(shape.label_smoothing);
  out.derivations = derivations_of(options, otherwise, shape);
  out.derivations["ffn_hidden_size"] = "mlp_ratio x hidden_size";
  return out;
}

Gpt2Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  const auto off = [&](const char* key) {
    keys.refuse(key, !keys.flag(key, false), fmt::format("{} false", key).c_str());
  };
  keys.refuse("model_type", keys.word("model_type", "gpt2") == "gpt2", "\"model_type\": \"gpt2\"");
  off("add_cross_attention");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  Gpt2Options out;
  out.num_layers = keys.count("n_layer", 12, 1e4);
  out.hidden_size = keys.count("n_embd", 768, 1e6);
  out.num_heads = keys.count("n_head", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", 50257, 1e8);
  out.max_positions = keys.count("n_positions", keys.count("n_ctx", 1024, 1e8), 1e8);
  out.ffn_hidden_size = keys.count("n_inner", 4 * *out.hidden_size, 1e7);
  out.mlp_ratio = static_cast<double>(*out.ffn_hidden_size) / static_cast<double>(*out.hidden_size);
  out.embedding_dropout = keys.number("embd_pdrop", 0.1, 0, kMaxDropout);
  out.attention_dropout = keys.number("attn_pdrop", 0.1, 0, kMaxDropout);
  out.residual_dropout = keys.number("resid_pdrop", 0.1, 0, kMaxDropout);
  out.classifier_dropout = keys.number_or_none("classifier_dropout", 0, kMaxDropout);
  out.scale_attention = keys.flag("scale_attn_weights", true);
  out.scale_attention_by_layer = keys.flag("scale_attn_by_inverse_layer_idx", false);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  out.activation = keys.activation("activation_function", "gelu_new");
  out.layer_norm_eps = keys.number("layer_norm_epsilon", 1e-5, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value to_hf(const Gpt2Options& options) {
  TESSERA_REQUIRE(options.moe.num_experts == 0,
                  Unsupported,
                  fmt::format("Hugging Face's GPT-2 has no experts (model.moe.num_experts is {})",
                              options.moe.num_experts),
                  "choose a family with experts in model.family");
  TESSERA_REQUIRE(options.bias && options.feed_forward == "dense" && !options.qk_norm,
                  Unsupported,
                  "Hugging Face's GPT-2 has biases, an MLP without a gate, and no norms of queries "
                  "and keys",
                  "train with model.bias true, model.feed_forward dense and model.qk_norm false");
  TESSERA_REQUIRE(options.qkv_bias,
                  Unsupported,
                  "model.qkv_bias is false, and Hugging Face's GPT-2 always has that bias",
                  "train with model.qkv_bias true");
  TESSERA_REQUIRE(
      !options.num_kv_heads || options.num_kv_heads == options.num_heads,
      Unsupported,
      fmt::format(
          "model.num_kv_heads is {}, and heads of Hugging Face's GPT-2 share no keys and values",
          options.num_kv_heads.value_or(0)),
      "train without model.num_kv_heads");
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format("model.activation {} has no name in Hugging Face's GPT-2", options.activation),
      "train with gelu_tanh, gelu, relu or silu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("GPT2LMHeadModel")})},
       {"model_type", json::Value::string("gpt2")},
       {"vocab_size", integer(options.vocab_size)},
       {"n_positions", integer(options.max_positions)},
       {"n_embd", integer(options.hidden_size)},
       {"n_layer", integer(options.num_layers)},
       {"n_head", integer(options.num_heads)},
       {"n_inner", integer(options.ffn_hidden_size)},
       {"activation_function", json::Value::string(activation)},
       {"layer_norm_epsilon", number(options.layer_norm_eps)},
       {"embd_pdrop", number(options.embedding_dropout.value_or(options.dropout))},
       {"attn_pdrop", number(options.attention_dropout.value_or(options.dropout))},
       {"resid_pdrop", number(options.residual_dropout.value_or(options.dropout))},
       {"initializer_range", number(options.init_std)},
       {"scale_attn_weights", json::Value::boolean(options.scale_attention)},
       {"scale_attn_by_inverse_layer_idx", json::Value::boolean(options.scale_attention_by_layer)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
  if (options.classifier_dropout) out["classifier_dropout"] = number(*options.classifier_dropout);
  return out;
}

/// Hugging Face's names are tessera's with the prefix "transformer."; its Conv1D stores the
/// matrices of a layer as [in, out].
Composition compose(const ParamInfo& info) {
  if (info.stacked()) return Composition::of("transformer." + info.name, info.shape);
  const auto ends_with = [&](std::string_view end) { return info.name.ends_with(end); };
  const bool conv1d =
      ends_with(".c_attn.weight") || ends_with(".c_proj.weight") || ends_with(".c_fc.weight");
  Shape shape = info.matrix_shape;
  if (conv1d) std::swap(shape.at(0), shape.at(1));
  const bool outside = info.name == "lm_head.weight" || info.name == "score.weight" ||
                       info.name.starts_with("classifier.");
  const Composition theirs = Composition::of((outside ? "" : "transformer.") + info.name, shape);
  return (conv1d ? theirs.transposed() : theirs).viewed(info.shape);
}

/// Causal masks, which old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

TESSERA_MODEL("gpt2",
              FamilyOf<Gpt2Options>{
                  .presets = presets(),
                  .adjustable = {{"dropout",
                                  {"embedding_dropout", "attention_dropout", "residual_dropout"}},
                                 {"embedding_dropout"},
                                 {"attention_dropout"},
                                 {"residual_dropout"},
                                 {"classifier_dropout"},
                                 {"init_std"},
                                 {"label_smoothing"}},
                  .resolve = resolve_gpt2,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "transformer.",
                                 .ties = {{"lm_head.weight", "transformer.wte.weight"}},
                                 .is_buffer = is_buffer,
                                 .anchor = "transformer.wte.weight"},
                  .is_default = true});

TESSERA_MODULE_ORDER("gpt2",
                     {.base = "transformer.",
                      .modules = {"transformer.wte",
                                  "transformer.wpe",
                                  "transformer.h.*.ln_1",
                                  "transformer.h.*.attn.c_attn",
                                  "transformer.h.*.attn.c_proj",
                                  "transformer.h.*.ln_2",
                                  "transformer.h.*.mlp.c_fc",
                                  "transformer.h.*.mlp.c_proj",
                                  "transformer.ln_f",
                                  "lm_head"}});

TESSERA_GPT_NAMES("gpt2",
                  {.architecture = "GPT2LMHeadModel",
                   .model_type = "gpt2",
                   .table = "transformer.wte.weight",
                   .positions = "transformer.wpe.weight",
                   .layers = "transformer.h.",
                   .attention_norm = "ln_1",
                   .attention_input = "attn.c_attn",
                   .attention_output = "attn.c_proj",
                   .mlp_norm = "ln_2",
                   .mlp_input = "mlp.c_fc",
                   .mlp_output = "mlp.c_proj",
                   .final_norm = "transformer.ln_f",
                   .head = "lm_head.weight",
                   .config = {{"max_positions", "n_positions"},
                              {"hidden_size", "n_embd"},
                              {"ffn_hidden_size", "n_inner"},
                              {"num_layers", "n_layer"},
                              {"num_heads", "n_head"},
                              {"activation", "activation_function"},
                              {"norm_eps", "layer_norm_epsilon"},
                              {"tie_embeddings", "tie_word_embeddings"}}});

TESSERA_GGUF_NAMES(
    "gpt2",
    {.architecture = "GPT2LMHeadModel",
     .model_type = "gpt2",
     .keys = {{"context_length", "n_positions"},
              {"embedding_length", "n_embd"},
              {"feed_forward_length", "n_inner"},
              {"block_count", "n_layer"},
              {"attention.head_count", "n_head"},
              {"attention.layer_norm_epsilon", "layer_norm_epsilon", true}},
     .implied = {{"activation_function", json::Value::string("gelu_new")},
                 {"scale_attn_weights", json::Value::boolean(true)},
                 {"scale_attn_by_inverse_layer_idx", json::Value::boolean(false)}},
     .flags = {},
     .modules = {{"token_embd", "transformer.wte"},
                 {"position_embd", "transformer.wpe"},
                 {"output_norm", "transformer.ln_f"},
                 {"output", "lm_head"},
                 {"blk.*.attn_norm", "transformer.h.*.ln_1"},
                 {"blk.*.attn_qkv", "transformer.h.*.attn.c_attn"},
                 {"blk.*.attn_output", "transformer.h.*.attn.c_proj"},
                 {"blk.*.ffn_norm", "transformer.h.*.ln_2"},
                 {"blk.*.ffn_up", "transformer.h.*.mlp.c_fc"},
                 {"blk.*.ffn_down", "transformer.h.*.mlp.c_proj"}},
     .transposed = {"blk.*.attn_qkv", "blk.*.attn_output", "blk.*.ffn_up", "blk.*.ffn_down"},
     .rotated = {}});

}  // namespace
}  // namespace tessera::models
