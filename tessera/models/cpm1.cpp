// SPDX-License-Identifier: Apache-2.0
// CPM-1 as ModelCenter trains it: a decoder of T5's kind, whose positions are one learned bias by
// distance that all layers share. Its linear layers may divide what they make by the root of their
// inputs (length_scale). Source: Zhang et al. 2021, "CPM: a large-scale generative Chinese
// pre-trained language model", and OpenBMB/ModelCenter. CPM-Generate, the first version, is a
// GPT-2.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/feed_forward.h"
#include "tessera/models/layer_norm_decoder.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/relative_position.h"

// Legend: B batch, T tokens, C embed.
namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 30968, kPositions = 1024;
constexpr std::string_view kGated = "gated_";

struct CpmShape : LayerNormShape {
  std::int64_t buckets = 32, max_distance = 128;
  std::string activation = "gelu";
  bool gated = true, length_scale = false, attention_scale = false, norm_bias = false;

  /// Returns the factor of a layer's output: the inverse of its divisor for this number of inputs.
  [[nodiscard]] double scale_of(std::int64_t inputs) const {
    return length_scale ? 1.0 / std::sqrt(static_cast<double>(inputs)) : 1.0;
  }
};

NormSpec norm_of(const CpmShape& shape) {
  return {.kind = shape.norm_bias ? NormKind::LayerNorm : NormKind::RmsNorm,
          .eps = shape.layer_norm_eps};
}

TrunkOutput output_of(const CpmShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = {.kind = NormKind::None},
      .vocabulary = {"input_embedding.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
  };
}

SelfAttentionSpec attention_of(const CpmShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_heads,
          .head_dim = shape.hidden_size / shape.num_heads,
          .qkv_name = "self_att.self_attention.project_qkv",
          .output_name = "self_att.self_attention.attention_out",
          .qkv_init = init,
          .output_init = init,
          .dropout = shape.attention_dropout,
          .scale = shape.attention_scale ? 0.0 : 1.0,
          .relative_bias = RelativeBiasSpec{.name = "position_bias.relative_attention_bias",
                                            .buckets = {.count = shape.buckets,
                                                        .max_distance = shape.max_distance,
                                                        .bidirectional = true},
                                            .init = init}};
}

MlpSpec mlp_of(const CpmShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .ffn_hidden_size = shape.ffn_hidden_size,
          .input_name = "ffn.ffn.w_in.w",
          .output_name = "ffn.ffn.w_out",
          .bias = false,
          .input_init = init,
          .output_init = init,
          .activation = shape.activation,
          .gated = shape.gated};
}

at::Tensor scaled(const at::Tensor& x, double scale) {
  return scale == 1.0 ? x : x * scale;
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const CpmShape& shape) : shape_(shape) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_of(shape_)); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = nn::embedding(batch.tensor("input_ids"), *table_, context);
    return {.flow = {.diff = {scaled(x_BTC, shape_.scale_of(shape_.hidden_size))}}};
  }

 private:
  CpmShape shape_;
  Param* table_ = nullptr;
};

/// The linear layers of a branch have the same divisor, so the inputs of the first ones and the
/// output of the last one are scaled instead.
class Layer final : public nn::Block {
 public:
  explicit Layer(const CpmShape& shape)
      : shape_(shape),
        attention_(attention_of(shape)),
        feed_forward_(make_feed_forward(mlp_of(shape))),
        attention_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    attention_norm_.declare(params, "self_att.layernorm_before_attention", shape_.hidden_size);
    attention_.declare(params);
    mlp_norm_.declare(params, "ffn.layernorm_before_ffn", shape_.hidden_size);
    feed_forward_->declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double inputs = shape_.scale_of(shape_.hidden_size),
                 inner = shape_.scale_of(shape_.ffn_hidden_size), p = shape_.dropout;
    const nn::Normed begin = attention_norm_.residual(in.diff.at(0), context);
    const at::Tensor a_BTC =
        scaled(attention_(scaled(begin.normed_BTC, inputs), batch, *this, context), inputs);
    const nn::Normed middle =
        mlp_norm_.residual(begin.x_BTC, context, a_BTC, context.dropout("attention_output", p));
    nn::Outcome out;
    const at::Tensor f_BTC =
        scaled((*feed_forward_)(scaled(middle.normed_BTC, inputs), context, out.terms), inner);
    out.flow.diff = {nn::add_dropout(middle.x_BTC, f_BTC, context.dropout("mlp_output", p))};
    return out;
  }

 private:
  CpmShape shape_;
  SelfAttention attention_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm attention_norm_, mlp_norm_;
};

/// The last norm. The head is a linear layer too: its input is scaled here.
class End final : public nn::Block {
 public:
  explicit End(const CpmShape& shape) : shape_(shape), norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, "encoder.output_layernorm", shape_.hidden_size, kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    return {.flow = {.diff = {scaled(norm_(in.diff.at(0), context),
                                     shape_.scale_of(shape_.hidden_size))}}};
  }

 private:
  CpmShape shape_;
  Norm norm_;
};

Trunk trunk_of(const CpmShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(
      {"input_embedding", [shape] { return std::make_unique<Embedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    trunk.blocks.push_back(
        {fmt::format("encoder.layers.{}", i), [shape] { return std::make_unique<Layer>(shape); }});
  }
  trunk.blocks.push_back({"encoder.output", [shape] { return std::make_unique<End>(shape); }});
  return trunk;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {nano("cpm1-nano", 4, 128, 4)};
  return all;
}

struct CpmOptions final : LayerNormOptions {
  CpmOptions() {
    tie_embeddings = false;
    layer_norm_eps = 1e-6;
  }
  std::int64_t position_buckets = 32, position_max_distance = 128;
  std::string activation = "gelu";
  bool gated = true, length_scale = false, attention_scale = false, norm_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<CpmOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_decoder_sizes(fields, presets(), "cpm1-nano if no size is given");
    fields.field("position_buckets",
                 position_buckets,
                 {.text = "Number of buckets of distances between tokens, of which half are of "
                          "tokens to come, which no token sees.",
                  .min = static_cast<double>(ops::least_buckets(true)),
                  .max = 1e5});
    fields.field("position_max_distance",
                 position_max_distance,
                 {.text = "Distance from which all tokens are in one bucket.",
                  .unit = "tokens",
                  .min = 2,
                  .max = 1e8});
    fields.field("activation",
                 activation,
                 {.text = "Activation function of the MLP, or of its gate.",
                  .choices = ops::activation_names()});
    fields.field("gated", gated, {.text = "Whether the MLP has a gate."});
    fields.field("length_scale",
                 length_scale,
                 {.text = "Whether embeddings and the outputs of linear layers are divided by the "
                          "square root of the number of inputs."});
    fields.field("attention_scale",
                 attention_scale,
                 {.text = "Whether scores are divided by the square root of a head's channels."});
    fields.field("norm_bias",
                 norm_bias,
                 {.text = "Whether norms are layer norms with a bias; otherwise they divide by the "
                          "root mean square."});
    describe_dropouts(fields);
    describe_tie(fields);
    describe_layer_norm_eps(fields);
    describe_end(fields);
  }
};

void specialize(const CpmOptions& options, CpmShape& shape, Checks& checks) {
  shape.buckets = options.position_buckets;
  shape.max_distance = options.position_max_distance;
  shape.activation = options.activation;
  shape.gated = options.gated;
  shape.length_scale = options.length_scale;
  shape.attention_scale = options.attention_scale;
  shape.norm_bias = options.norm_bias;
  checks.require(shape.max_distance > shape.buckets / 2,
                 "model.position_max_distance",
                 fmt::format("position_max_distance {} lies among the distances that have one of "
                             "{} buckets each",
                             shape.max_distance,
                             shape.buckets),
                 fmt::format("set at least {}, or fewer position_buckets", shape.buckets / 2 + 1));
}

/// ModelCenter's own keys.
CpmOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  require_plain(keys, "cpm1");
  CpmOptions out;
  out.num_layers = keys.count("num_layers", 12, 1e4);
  out.hidden_size = keys.count("dim_model", 768, 1e6);
  out.num_heads = keys.count("num_heads", 12, 1e6);
  const std::int64_t channels = keys.count("dim_head", *out.hidden_size / *out.num_heads, 1e6);
  keys.refuse("dim_head",
              channels * *out.num_heads == *out.hidden_size,
              "heads that share dim_model between them");
  out.ffn_hidden_size = keys.count("dim_ff", 256, 1e7);
  out.vocab_size = keys.count("vocab_size", kVocabulary, 1e8);
  out.max_positions = keys.count("max_length", kPositions, 1e8);
  out.dropout = out.attention_dropout = keys.number("dropout_p", 0.0, 0, kMaxDropout);
  for (const char* key : {"att_bias", "ffn_bias", "proj_bias"})
    keys.refuse(key, !keys.flag(key, false), "linear layers without biases");
  keys.refuse("post_layer_norm", !keys.flag("post_layer_norm", false), "norms before branches");
  keys.refuse("pos_bias_type",
              keys.word("pos_bias_type", "relative") == "relative",
              "pos_bias_type relative");
  keys.refuse("cls_head", keys.empty("cls_head"), "the head of a language model");
  out.position_buckets = keys.count("position_bias_num_buckets", 32, 1e5);
  out.position_max_distance = keys.count("position_bias_max_distance", 128, 1e8);
  keys.refuse("position_bias_num_buckets",
              out.position_buckets >= ops::least_buckets(/*bidirectional=*/true) &&
                  out.position_max_distance > out.position_buckets / 2,
              "at least 4 buckets, of which half reach less far than the longest distance");
  std::string activation = keys.word("ffn_activate_fn", "gated_gelu");
  out.gated = activation.starts_with(kGated);
  if (out.gated) activation.erase(0, kGated.size());
  const bool known = activation == "relu" || activation == "silu" || activation == "gelu" ||
                     activation == "gelu_new";
  keys.refuse("ffn_activate_fn", known, "relu, silu, gelu, gelu_new, or gated_ with one of them");
  out.activation = activation == "gelu_new" ? "gelu_tanh" : activation;
  out.length_scale = keys.flag("length_scale", false);
  out.attention_scale = keys.flag("attn_scale", false);
  out.norm_bias = keys.flag("norm_bias", false);
  out.layer_norm_eps = keys.number("norm_eps", 1e-6, 1e-30, 1);
  out.tie_embeddings = keys.flag("tied", false);
  return out;
}

json::Value to_hf(const CpmOptions& options) {
  const std::string plain = activation_to_hf(options.activation);
  TESSERA_REQUIRE(!plain.empty(),
                  Unsupported,
                  "model.activation " + options.activation +
                      " has no name in the configuration of CPM's models",
                  "train with relu, silu, gelu or gelu_tanh");
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  const auto flag = [](bool value) { return json::Value::boolean(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("CPM1")})},
       {"model_type", json::Value::string("cpm1")},
       {"vocab_size", integer(options.vocab_size.value())},
       {"max_length", integer(options.max_positions.value())},
       {"dim_model", integer(options.hidden_size.value())},
       {"num_heads", integer(options.num_heads.value())},
       {"dim_head", integer(options.hidden_size.value() / options.num_heads.value())},
       {"dim_ff", integer(options.ffn_hidden_size.value())},
       {"num_layers", integer(options.num_layers.value())},
       {"dropout_p", json::Value::number(options.dropout)},
       {"pos_bias_type", json::Value::string("relative")},
       {"position_bias_num_buckets", integer(options.position_buckets)},
       {"position_bias_max_distance", integer(options.position_max_distance)},
       {"norm_eps", json::Value::number(options.layer_norm_eps)},
       {"norm_bias", flag(options.norm_bias)},
       {"ffn_activate_fn",
        json::Value::string((options.gated ? std::string(kGated) : std::string()) + plain)},
       {"length_scale", flag(options.length_scale)},
       {"attn_scale", flag(options.attention_scale)},
       {"tied", flag(options.tie_embeddings)}});
}

/// ModelCenter's names: weights with the same input are one parameter here.
Composition compose(const ParamInfo& info) {
  const auto joined = [&](const std::string& ours, const std::vector<std::string>& theirs) {
    const Shape stored = {info.numel() / info.shape.front() / info.shape.back(), info.shape.back()};
    Shape one = info.shape;
    one.front() = 1;
    std::vector<Composition> parts;
    for (const std::string& its : theirs) {
      std::string name = info.name;
      name.replace(name.rfind(ours), ours.size(), its);
      parts.push_back(Composition::of(std::move(name), stored).viewed(one));
    }
    return Composition::concat(parts, 0);
  };
  if (info.name.ends_with(".project_qkv.weight"))
    return joined("project_qkv", {"project_q", "project_k", "project_v"});
  if (info.name.ends_with(".w_in.w.weight") && info.shape.size() == 3)
    return joined(".w.weight", {".w_0.weight", ".w_1.weight"});
  if (info.name == "lm_head.weight") return Composition::of("output_projection.weight", info.shape);
  return Composition::of(info.name, info.shape);
}

using CpmFamily = LayerNormFamilyOf<CpmOptions, CpmShape>;
TESSERA_MODEL("cpm1",
              CpmFamily{
                  .name = "cpm1",
                  .presets = presets(),
                  .specialize = specialize,
                  .trunk = trunk_of,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .ties = {{"output_projection.weight", "input_embedding.weight"}},
                                 .anchor = "position_bias.relative_attention_bias"}});

const NamePairs& modules_of_layer() {
  static const NamePairs all = [] {
    NamePairs out;
    for (const char* const module : {"self_att.layernorm_before_attention",
                                     "self_att.self_attention.project_q",
                                     "self_att.self_attention.project_k",
                                     "self_att.self_attention.project_v",
                                     "self_att.self_attention.attention_out",
                                     "ffn.layernorm_before_ffn",
                                     "ffn.ffn.w_in.w",
                                     "ffn.ffn.w_in.w_0",
                                     "ffn.ffn.w_in.w_1",
                                     "ffn.ffn.w_out"})
      out.emplace_back(module, module);
    return out;
  }();
  return all;
}

TESSERA_MODELCENTER("cpm1",
                    {.class_name = "CPM1",
                     .is_of =
                         [](const ModelCenterFile& file) {
                           return !file.has("position_embedding.weight") &&
                                  file.has("position_bias.relative_attention_bias") &&
                                  file.has(
                                      "encoder.layers.0.self_att.self_attention.project_q.weight");
                         },
                     .computes = {{"post_layer_norm", json::Value::boolean(false)},
                                  {"att_bias", json::Value::boolean(false)},
                                  {"ffn_bias", json::Value::boolean(false)},
                                  {"proj_bias", json::Value::boolean(false)},
                                  {"pos_bias_type", json::Value::string("relative")}},
                     .config_of =
                         [](const json::Value& facts, const json::Value& config) {
                           json::Value out = config;
                           out["model_type"] = json::Value::string("cpm1");
                           for (const auto& [fact, key] : NamePairs{{"vocab_size", "vocab_size"},
                                                                    {"hidden_size", "dim_model"},
                                                                    {"ffn_hidden_size", "dim_ff"},
                                                                    {"num_layers", "num_layers"},
                                                                    {"num_heads", "num_heads"},
                                                                    {"head_dim", "dim_head"},
                                                                    {"tie_embeddings", "tied"}})
                             out[key] = *facts.find(fact);
                           return out;
                         },
                     .names =
                         [](std::int64_t layers) {
                           NamePairs out;
                           for (const char* const name : {"input_embedding",
                                                          "position_bias.relative_attention_bias",
                                                          "encoder.output_layernorm",
                                                          "output_projection"})
                             out.emplace_back(name, name);
                           add_layers(
                               out, layers, "encoder.layers", "encoder.layers", modules_of_layer());
                           return out;
                         },
                     .head = "output_projection.weight"});

}  // namespace
}  // namespace tessera::models
