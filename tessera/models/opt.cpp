// SPDX-License-Identifier: Apache-2.0
// The OPT family: learned positions that count non-padding tokens, ReLU, biases, a tied head.
// OPT-350M has norms after each branch, no final norm, and token embeddings that are narrower than
// the residual stream. Source: Zhang et al. 2022, "OPT: Open pre-trained transformer language
// models".
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/layer_norm_decoder.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"
#include "tessera/models/position_embedding.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed, D channels of a token's embedding.
namespace tessera::models {
namespace {

using enum LogicalAxis;

/// Number of rows of the position table before the first position.
constexpr std::int64_t kFirstPosition = 2;
constexpr double kLayerNormEps = 1e-5;  // no key of Hugging Face's configuration changes it

struct OptShape : LayerNormShape {
  std::int64_t embedding_size = 0;  ///< width of a token's embedding; 0: hidden_size
  bool pre_norm = true, final_norm = true, bias = true;
  std::string activation = "relu";

  [[nodiscard]] std::int64_t token_channels() const {
    return embedding_size > 0 ? embedding_size : hidden_size;
  }
  [[nodiscard]] bool projects() const { return token_channels() != hidden_size; }
};

constexpr NormSpec kNorm = {NormKind::LayerNorm, kLayerNormEps};

NormSpec final_norm_of(const OptShape& shape) {
  return {shape.final_norm ? NormKind::LayerNorm : NormKind::None, kLayerNormEps};
}

/// The projection to the width of the token embedding follows the final norm, so both belong to the
/// trunk.
TrunkOutput output_of(const OptShape& shape) {
  return {
      .hidden_size = shape.token_channels(),
      .norm = shape.projects() ? NormSpec{NormKind::None} : final_norm_of(shape),
      .norm_name = "final_layer_norm",
      .vocabulary = {"embed_tokens.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
  };
}

LayerSpec layer_of(const OptShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {
      .attention = {.hidden_size = shape.hidden_size,
                    .num_heads = shape.num_heads,
                    .num_kv_heads = shape.num_heads,
                    .head_dim = shape.hidden_size / shape.num_heads,
                    .qkv_name = "self_attn.qkv_proj",
                    .output_name = "self_attn.out_proj",
                    .qkv_bias = shape.bias,
                    .output_bias = shape.bias,
                    .qkv_init = init,
                    .output_init = init,
                    .dropout = shape.attention_dropout},
      .mlp = MlpSpec{.hidden_size = shape.hidden_size,
                     .ffn_hidden_size = shape.ffn_hidden_size,
                     .input_name = "fc1",
                     .output_name = "fc2",
                     .bias = shape.bias,
                     .input_init = init,
                     .output_init = init,
                     .activation = shape.activation},
      .norm = kNorm,
      .attention_norm_name = "self_attn_layer_norm",
      .mlp_norm_name = "final_layer_norm",
      .order = shape.pre_norm ? ResidualOrder::PreNorm : ResidualOrder::PostNorm,
      .residual_dropout = shape.dropout,
  };
}

/// A projection between the width of the token embedding and the residual stream.
class Projection {
 public:
  void declare(nn::Params& params,
               const std::string& name,
               Shape sizes,
               std::vector<LogicalAxis> axes,
               double init_std) {
    weight_ = params.add(
        name + ".weight", std::move(sizes), std::move(axes), Init::normal(init_std), kGlobalName);
  }
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, nn::StepContext& context) const {
    return nn::linear(x, *weight_, nullptr, context);
  }

 private:
  Param* weight_ = nullptr;
};

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const OptShape& shape)
      : shape_(shape),
        positions_({.name = "embed_positions.weight",
                    .max_positions = shape.max_positions,
                    .hidden_size = shape.hidden_size,
                    .offset = kFirstPosition,
                    .skip_padding = true,
                    .init = Init::normal(shape.init_std)}) {}

  void declare(nn::Params& params) override {
    tokens_ = declare_table(params, output_of(shape_));
    positions_.declare(params);
    if (!shape_.projects()) return;
    project_in_.declare(params,
                        "project_in",
                        {shape_.hidden_size, shape_.token_channels()},
                        {Embed, None},
                        shape_.init_std);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override {
    return shape_.projects() ? "token embeddings of another width than the residual stream" : "";
  }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    nn::refuse_grid(*this, context);
    at::Tensor tokens_BTC = nn::embedding(batch.tensor("input_ids"), *tokens_, context);
    if (shape_.projects()) tokens_BTC = project_in_(tokens_BTC, context);
    return {.flow = {.diff = {tokens_BTC + positions_(batch, context)}}};
  }

 private:
  OptShape shape_;
  Param* tokens_ = nullptr;
  PositionEmbedding positions_;
  Projection project_in_;
};

/// The final norm and the projection to the token embedding's width: [B, T, C] -> [B, T, D].
class ProjectOut final : public nn::Block {
 public:
  explicit ProjectOut(const OptShape& shape) : shape_(shape), norm_(final_norm_of(shape)) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, "final_layer_norm", shape_.hidden_size, kGlobalName);
    projection_.declare(params,
                        "project_out",
                        {shape_.token_channels(), shape_.hidden_size},
                        {None, Embed},
                        shape_.init_std);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    return {.flow = {.diff = {projection_(norm_(in.diff.at(0), context), context)}}};
  }

 private:
  OptShape shape_;
  Norm norm_;
  Projection projection_;
};

Trunk trunk_of(const OptShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back({"embed_tokens", [shape] { return std::make_unique<Embedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block_of(fmt::format("layers.{}", i), layer_of(shape)));
  if (shape.projects())
    trunk.blocks.push_back(
        {"project_out", [shape] { return std::make_unique<ProjectOut>(shape); }});
  return trunk;
}

constexpr std::int64_t kPositions = 2048, kVocabulary = 50272;

Preset published(const char* name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::vector<PresetValue> values = {}) {
  return {.name = name,
          .num_layers = layers,
          .hidden_size = hidden,
          .num_heads = heads,
          .max_positions = kPositions,
          .vocab_size = kVocabulary,
          .values = std::move(values)};
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("opt-nano", 4, 128, 4),
      published("opt-125m", 12, 768, 12),
      // Narrow token embeddings, and norms after the branches.
      published("opt-350m", 24, 1024, 16, {{"embedding_size", 512}, {"pre_norm", false}}),
      published("opt-1.3b", 24, 2048, 32),
      published("opt-2.7b", 32, 2560, 32),
      published("opt-6.7b", 32, 4096, 32),
      published("opt-13b", 40, 5120, 40),
      published("opt-30b", 48, 7168, 56),
      published("opt-66b", 64, 9216, 72),
  };
  return all;
}

struct OptOptions final : LayerNormOptions {
  std::optional<std::int64_t> embedding_size;
  std::optional<bool> pre_norm, final_norm;
  bool bias = true;
  std::string activation = "relu";

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<OptOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_decoder_sizes(fields, presets(), "opt-nano if no size is given");
    fields.field("embedding_size",
                 embedding_size,
                 {.text = "Width of a token's embedding; if it is not hidden_size, two projections "
                          "convert it to the width of the residual stream and back.",
                  .min = 1,
                  .max = 1e6,
                  .default_text = "hidden_size; 512 for opt-350m"});
    fields.field("pre_norm",
                 pre_norm,
                 {.text = "Whether a norm comes before each branch instead of after it.",
                  .default_text = "true; false for opt-350m"});
    fields.field("final_norm",
                 final_norm,
                 {.text = "Whether a norm follows the last layer; only with pre_norm.",
                  .default_text = "the value of pre_norm"});
    describe_dropouts(fields);
    fields.field("bias", bias, {.text = "Whether the projections of a layer have biases."});
    describe_tie(fields);
    fields.field("activation",
                 activation,
                 {.text = "Activation function of the MLP.", .choices = ops::activation_names()});
    describe_end(fields);
  }
};

void specialize(const OptOptions& options, OptShape& shape, Checks& checks) {
  shape.embedding_size = options.embedding_size.value_or(0);
  shape.pre_norm = options.pre_norm.value_or(true);
  shape.final_norm = options.final_norm.value_or(shape.pre_norm);
  checks.require(shape.pre_norm || !shape.final_norm,
                 "model.final_norm",
                 "final_norm is true, and the last layer already ends with a norm where pre_norm "
                 "is false",
                 "remove final_norm, or set pre_norm true");
  shape.bias = options.bias;
  shape.activation = options.activation;
}

void complete(const OptShape& shape, OptOptions& options) {
  options.embedding_size = shape.token_channels();
  options.pre_norm = shape.pre_norm;
  options.final_norm = shape.final_norm;
}

OptOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  require_plain(keys, "opt");
  keys.refuse("layer_norm_elementwise_affine",
              keys.flag("layer_norm_elementwise_affine", true),
              "layer_norm_elementwise_affine true");
  keys.refuse("layerdrop", keys.number("layerdrop", 0.0, 0, 1) == 0.0, "layerdrop 0");
  OptOptions out;
  out.num_layers = keys.count("num_hidden_layers", 12, 1e4);
  out.hidden_size = keys.count("hidden_size", 768, 1e6);
  out.num_heads = keys.count("num_attention_heads", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", kVocabulary, 1e8);
  out.max_positions = keys.count("max_position_embeddings", kPositions, 1e8);
  out.ffn_hidden_size = keys.count("ffn_dim", 3072, 1e7);
  out.embedding_size = keys.count("word_embed_proj_dim", *out.hidden_size, 1e6);
  out.pre_norm = keys.flag("do_layer_norm_before", true);
  out.final_norm = *out.pre_norm && !keys.flag("_remove_final_layer_norm", false);
  out.dropout = keys.number("dropout", 0.1, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.bias = keys.flag("enable_bias", true);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  out.activation = keys.activation("activation_function", "relu");
  out.init_std = keys.number("init_std", 0.02, 0, 100);
  return out;
}

json::Value to_hf(const OptOptions& options) {
  json::Value out = hf_begin(options, "OPTForCausalLM", "opt");
  out["activation_function"] = json::Value::string(hf_activation(options.activation, "OPT"));
  out["num_hidden_layers"] = json::Value::integer(options.num_layers.value());
  out["num_attention_heads"] = json::Value::integer(options.num_heads.value());
  out["ffn_dim"] = json::Value::integer(options.ffn_hidden_size.value());
  out["max_position_embeddings"] = json::Value::integer(options.max_positions.value());
  out["word_embed_proj_dim"] = json::Value::integer(options.embedding_size.value());
  const bool pre_norm = options.pre_norm.value(), final_norm = options.final_norm.value();
  out["do_layer_norm_before"] = json::Value::boolean(pre_norm);
  out["_remove_final_layer_norm"] = json::Value::boolean(pre_norm && !final_norm);
  out["enable_bias"] = json::Value::boolean(options.bias);
  out["layer_norm_elementwise_affine"] = json::Value::boolean(true);
  out["dropout"] = real_to_hf(options.dropout);
  out["layerdrop"] = real_to_hf(0.0);
  out["init_std"] = real_to_hf(options.init_std);
  return out;
}

/// Hugging Face's names are tessera's with the prefix "model.decoder.", except for parameters after
/// the trunk; it stores queries, keys and values separately.
Composition compose(const ParamInfo& info) {
  const bool outside = info.name == "lm_head.weight" || info.name == "score.weight";
  const std::string theirs = (outside ? "" : "model.decoder.") + info.name;
  constexpr std::string_view kFused = "qkv_proj";
  const std::size_t at = theirs.find(kFused);
  if (at == std::string::npos) return Composition::of(theirs, info.shape);
  // [3, heads, channels, ...]
  Shape stored = {info.shape[1] * info.shape[2]}, one = info.shape;
  stored.insert(stored.end(), info.shape.begin() + 3, info.shape.end());
  one.front() = 1;
  std::vector<Composition> parts;
  for (const char* const its : {"q_proj", "k_proj", "v_proj"}) {
    std::string name = theirs;
    name.replace(at, kFused.size(), its);
    parts.push_back(Composition::of(std::move(name), stored).viewed(one));
  }
  return Composition::concat(parts, 0);
}

using OptFamily = LayerNormFamilyOf<OptOptions, OptShape>;
TESSERA_MODEL("opt",
              OptFamily{
                  .name = "opt",
                  .presets = presets(),
                  .specialize = specialize,
                  .trunk = trunk_of,
                  .complete = complete,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "model.",
                                 .ties = {{"lm_head.weight", "model.decoder.embed_tokens.weight"}},
                                 .anchor = "model.decoder.embed_tokens.weight"}});

TESSERA_MODULE_ORDER("opt",
                     {.base = "model.",
                      .modules = {"model.decoder.embed_tokens",
                                  "model.decoder.embed_positions",
                                  "model.decoder.project_out",
                                  "model.decoder.project_in",
                                  "model.decoder.final_layer_norm",
                                  "model.decoder.layers.*.self_attn.k_proj",
                                  "model.decoder.layers.*.self_attn.v_proj",
                                  "model.decoder.layers.*.self_attn.q_proj",
                                  "model.decoder.layers.*.self_attn.out_proj",
                                  "model.decoder.layers.*.self_attn_layer_norm",
                                  "model.decoder.layers.*.fc1",
                                  "model.decoder.layers.*.fc2",
                                  "model.decoder.layers.*.final_layer_norm",
                                  "lm_head"}});

TESSERA_MODELCENTER(
    "opt",
    {.class_name = "OPT",
     .is_of =
         [](const ModelCenterFile& file) {
           return file.has("position_embedding.weight") &&
                  file.has("decoder.layers.0.self_att.self_attention.project_q.weight");
         },
     .computes = {{"post_layer_norm", json::Value::boolean(false)},
                  {"norm_bias", json::Value::boolean(true)},
                  {"att_bias", json::Value::boolean(true)},
                  {"ffn_bias", json::Value::boolean(true)},
                  {"attn_scale", json::Value::boolean(true)},
                  {"length_scale", json::Value::boolean(false)},
                  {"pos_bias_type", json::Value::string("none")}},
     .config_of =
         [](const json::Value& facts, const json::Value& config) {
           json::Value out = json::Value::object({{"model_type", json::Value::string("opt")}});
           for (const auto& [fact, key] : NamePairs{{"vocab_size", "vocab_size"},
                                                    {"hidden_size", "hidden_size"},
                                                    {"ffn_hidden_size", "ffn_dim"},
                                                    {"num_layers", "num_hidden_layers"},
                                                    {"num_heads", "num_attention_heads"},
                                                    {"activation", "activation_function"},
                                                    {"tie_embeddings", "tie_word_embeddings"}})
             out[key] = *facts.find(fact);
           // The table has rows for the two positions before the first.
           out["max_position_embeddings"] =
               json::Value::integer(*facts.find("max_positions")->as_integer() - 2);
           const json::Value* dropout = config.find("dropout_p");
           if (dropout != nullptr && dropout->is_number()) out["dropout"] = *dropout;
           return out;
         },
     .names =
         [](std::int64_t layers) {
           const std::string base = "model.decoder.";
           NamePairs out = {{"input_embedding", base + "embed_tokens"},
                            {"position_embedding", base + "embed_positions"},
                            {"decoder.output_layernorm", base + "final_layer_norm"}};
           add_layers(out,
                      layers,
                      "decoder.layers",
                      base + "layers",
                      {{"self_att.layernorm_before_attention", "self_attn_layer_norm"},
                       {"self_att.self_attention.project_q", "self_attn.q_proj"},
                       {"self_att.self_attention.project_k", "self_attn.k_proj"},
                       {"self_att.self_attention.project_v", "self_attn.v_proj"},
                       {"self_att.self_attention.attention_out", "self_attn.out_proj"},
                       {"ffn.layernorm_before_ffn", "final_layer_norm"},
                       {"ffn.ffn.w_in.w", "fc1"},
                       {"ffn.ffn.w_out", "fc2"}});
           return out;
         },
     .head = "output_projection.weight"});

}  // namespace
}  // namespace tessera::models
