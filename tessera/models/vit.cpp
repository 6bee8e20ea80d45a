// SPDX-License-Identifier: Apache-2.0
// The ViT family: an image is a sequence of patches after a class token, with learned positions and
// pre-norm layers. Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words".
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/encoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/patch_embedding.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/ops/activation.h"

// Legend: B images, T tokens, C embed, F ffn.
namespace tessera::models {
namespace {

using enum LogicalAxis;

/// The complete shape of a ViT.
struct VitShape : Sizes {
  std::int64_t image_size = 224, patch_size = 16, num_channels = 3;
  std::string activation = "gelu";
  bool qkv_bias = true;
  double dropout = 0.0, attention_dropout = 0.0, layer_norm_eps = 1e-12, init_std = 0.02;
};

PatchSpec patches_of(const VitShape& shape) {
  return {.image_size = shape.image_size,
          .patch_size = shape.patch_size,
          .num_channels = shape.num_channels,
          .hidden_size = shape.hidden_size,
          .class_name = "cls_token",
          .projection = "patch_embeddings.projection",
          .init = Init::normal(shape.init_std)};
}

NormSpec norm_of(const VitShape& shape) {
  return {NormKind::LayerNorm, shape.layer_norm_eps};
}

/// Reads the "pixel_values" of models/patch_embedding.h.
class Patches final : public nn::Block {
 public:
  explicit Patches(const VitShape& shape) : shape_(shape), tokens_(patches_of(shape)) {}

  [[nodiscard]] bool works_by_token() const override { return true; }

  void declare(nn::Params& params) override {
    tokens_.declare(params);
    positions_ = params.add("position_embeddings",
                            {patches_of(shape_).tokens(), shape_.hidden_size},
                            {None, Embed},
                            Init::normal(shape_.init_std),
                            {.role = Role::PositionTable});
  }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = tokens_(batch, context);
    // A rank of a grid has some of the images, and embedding() expects the ids of all.
    const std::int64_t images = batch.tensor("pixel_values").size(0), T = x_BTC.size(1);
    const at::Tensor rows_T = at::arange(T, x_BTC.options().dtype(at::kLong));
    const at::Tensor positions_BTC =
        nn::whole_embedding(rows_T.expand({images, T}), *positions_, context);
    return {.flow = {.diff = {nn::dropout(nn::take_tokens(x_BTC + positions_BTC, context),
                                          context.dropout("embedding", shape_.dropout))}}};
  }

 private:
  VitShape shape_;
  PatchEmbedding tokens_;
  Param* positions_ = nullptr;
};

class Layer final : public nn::Block {
 public:
  explicit Layer(const VitShape& shape)
      : shape_(shape),
        activation_(ops::activation_from_name(shape.activation)),
        attention_(attention_of(shape)),
        before_(norm_of(shape)),
        after_(norm_of(shape)) {}

  [[nodiscard]] bool works_by_token() const override { return true; }

  void declare(nn::Params& params) override {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size;
    const Init init = Init::normal(shape_.init_std);
    attention_.declare(params);
    in_weight_ = params.add("intermediate.dense.weight", {F, C}, {Ffn, Embed}, init);
    in_bias_ = params.add("intermediate.dense.bias", {F}, {Ffn}, Init::zeros());
    out_weight_ = params.add("output.dense.weight", {C, F}, {Embed, Ffn}, init);
    out_bias_ = params.add("output.dense.bias", {C}, {Embed}, Init::zeros());
    before_.declare(params, "layernorm_before", C);
    after_.declare(params, "layernorm_after", C);
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double p = shape_.dropout;
    const nn::Normed begin = before_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        after_.residual(begin.x_BTC, context, y_BTC, context.dropout("attention_output", p));
    const at::Tensor f_BTF =
        nn::activate(nn::linear(middle.normed_BTC, *in_weight_, in_bias_, context), activation_);
    const at::Tensor z_BTC = nn::linear(f_BTF, *out_weight_, out_bias_, context);
    return {
        .flow = {.diff = {nn::add_dropout(middle.x_BTC, z_BTC, context.dropout("mlp_output", p))}}};
  }

 private:
  static SelfAttentionSpec attention_of(const VitShape& shape) {
    const Init init = Init::normal(shape.init_std);
    return {.hidden_size = shape.hidden_size,
            .num_heads = shape.num_heads,
            .num_kv_heads = shape.num_heads,
            .head_dim = shape.hidden_size / shape.num_heads,
            .qkv_name = "attention.attention.qkv",
            .output_name = "attention.output.dense",
            .qkv_bias = shape.qkv_bias,
            .output_bias = true,
            .qkv_init = init,
            .output_init = init,
            .dropout = shape.attention_dropout,
            .causal = false,
            .sample_tokens = patches_of(shape).tokens()};
  }

  VitShape shape_;
  ops::Activation activation_;
  SelfAttention attention_;
  Norm before_, after_;
  Param* in_weight_ = nullptr;
  Param* in_bias_ = nullptr;
  Param* out_weight_ = nullptr;
  Param* out_bias_ = nullptr;
};

Trunk vit_trunk(const VitShape& shape) {
  Trunk trunk{
      .output = {.hidden_size = shape.hidden_size,
                 .norm = norm_of(shape),
                 .norm_name = "layernorm",
                 .init_std = shape.init_std,
                 .causal = false,
                 .modality = Modality::Images,
                 .heads = {.sample = {.output = "classifier", .output_bias = "classifier.bias"},
                           .pooling = Pooling::FirstToken}}};
  trunk.blocks.push_back({"embeddings", [shape] { return std::make_unique<Patches>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    trunk.blocks.push_back(
        {fmt::format("encoder.layer.{}", i), [shape] { return std::make_unique<Layer>(shape); }});
  }
  return trunk;
}

/// A preset, with the patch size.
struct VitPreset {
  Preset sizes;
  std::int64_t image_size = 224, patch_size = 16;
};

const std::vector<VitPreset>& vit_presets() {
  static const std::vector<VitPreset> all = {
      {{"vit-nano", 4, 128, 4}, 32, 8},
      {{"vit-b-16", 12, 768, 12}},
      {{"vit-b-32", 12, 768, 12}, 224, 32},
      {{"vit-l-16", 24, 1024, 16}},
      {{"vit-h-14", 32, 1280, 16}, 224, 14},
  };
  return all;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out;
    for (const VitPreset& preset : vit_presets())
      out.push_back(preset.sizes);
    return out;
  }();
  return all;
}

struct VitOptions final : FamilyOptions {
  std::optional<std::int64_t> image_size, patch_size;
  std::int64_t num_channels = 3;
  std::optional<double> attention_dropout;
  std::string activation = "gelu";
  double layer_norm_eps = 1e-12;
  bool qkv_bias = true;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<VitOptions>(*this);
  }
  void describe(config::Fields& fields) override;
};

void VitOptions::describe(config::Fields& fields) {
  fields.field("preset",
               preset,
               {.text = "Preset sizes; explicitly given fields override them.",
                .choices = names_of(presets()),
                .default_text = "vit-nano if no size is given"});
  const auto size = [&](const char* key, auto& member, const char* text, double most) {
    fields.field(
        key, member, {.text = text, .min = 1, .max = most, .default_text = "from the preset"});
  };
  size("num_layers", num_layers, "Number of transformer layers.", 1e4);
  size("hidden_size", hidden_size, "Width of the residual stream.", 1e6);
  size("num_heads", num_heads, "Number of attention heads; must divide hidden_size.", 1e6);
  fields.field("ffn_hidden_size",
               ffn_hidden_size,
               {.text = "Hidden width of the MLP.",
                .min = 1,
                .max = 1e7,
                .default_text = "4 x hidden_size"});
  size("image_size", image_size, "Rows and columns of an image, in pixels.", 1e5);
  size("patch_size", patch_size, "Rows and columns of a patch; must divide image_size.", 1e5);
  fields.field("num_channels",
               num_channels,
               {.text = "Channels of an image: 3 of a coloured one.", .min = 1, .max = 1e4});
  describe_dropout(fields,
                   "Dropout probability after the embedding and on the outputs of attention and "
                   "MLP.");
  fields.field("attention_dropout",
               attention_dropout,
               {.text = "Dropout probability on attention weights.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
  fields.field("activation",
               activation,
               {.text = "Activation function of the MLP.", .choices = ops::activation_names()});
  fields.field("layer_norm_eps",
               layer_norm_eps,
               {.text = "Epsilon added to the variance in layer norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
  fields.field(
      "qkv_bias", qkv_bias, {.text = "Whether the query, key and value projection has a bias."});
  describe_init(fields, "Standard deviation of initial weights.");
  describe_label_smoothing(fields);
  describe_from(fields);
}

VitShape shape_of(const VitOptions& options, Checks& checks) {
  VitShape shape;
  const Preset* preset = find_preset(options, presets(), presets().front().name, checks);
  set_layers(options, preset, shape, checks);
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(4 * shape.hidden_size);
  check_heads(shape, checks);
  for (const VitPreset& one : vit_presets()) {
    if (preset == nullptr || one.sizes.name != preset->name) continue;
    shape.image_size = one.image_size;
    shape.patch_size = one.patch_size;
  }
  shape.image_size = options.image_size.value_or(shape.image_size);
  shape.patch_size = options.patch_size.value_or(shape.patch_size);
  checks.require(
      shape.image_size % shape.patch_size == 0,
      "model.patch_size",
      fmt::format(
          "patch_size {} does not divide image_size {}", shape.patch_size, shape.image_size),
      "choose a divisor");
  shape.num_channels = options.num_channels;
  shape.max_positions = patches_of(shape).tokens();
  shape.qkv_bias = options.qkv_bias;
  shape.dropout = options.dropout;
  shape.attention_dropout = options.attention_dropout.value_or(options.dropout);
  shape.layer_norm_eps = options.layer_norm_eps;
  shape.init_std = options.init_std;
  try {
    ops::activation_from_name(options.activation);
    shape.activation = options.activation;
  } catch (const Error& error) {
    checks.require(false, "model.activation", error.what(), error.fix());
  }
  return shape;
}

json::Value description_of(const VitOptions& options, const VitShape& shape) {
  VitOptions out = options;
  out.preset.reset();
  out.from.reset();
  out.num_layers = shape.num_layers;
  out.hidden_size = shape.hidden_size;
  out.num_heads = shape.num_heads;
  out.ffn_hidden_size = shape.ffn_hidden_size;
  out.image_size = shape.image_size;
  out.patch_size = shape.patch_size;
  ModelOptions whole("vit", std::make_unique<VitOptions>(std::move(out)));
  return config::write(whole);
}

Resolved resolve_vit(const VitOptions& options,
                     std::int64_t tokenizer_size,
                     std::optional<std::int64_t> /*sequence_length*/,
                     config::Problems& problems,
                     const config::Origins& origins) {
  Checks checks(problems, origins);
  const VitShape shape = shape_of(options, checks);
  VitShape possible = shape;
  make_possible(possible);
  if (possible.image_size % possible.patch_size != 0) possible.patch_size = possible.image_size;
  Resolved out = {.description = description_of(options, shape),
                  .trunk = vit_trunk(possible),
                  .vocab_size = tokenizer_size,
                  .tokenizer_size = tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_layers = shape.num_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_heads};
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, presets().front().name, shape);
  return out;
}

VitOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type", keys.word("model_type", "vit") == "vit", "\"model_type\": \"vit\"");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  VitOptions out;
  out.num_layers = keys.count("num_hidden_layers", 12, 1e4);
  out.hidden_size = keys.count("hidden_size", 768, 1e6);
  out.num_heads = keys.count("num_attention_heads", 12, 1e6);
  out.ffn_hidden_size = keys.count("intermediate_size", 3072, 1e7);
  out.image_size = keys.count("image_size", 224, 1e5);
  out.patch_size = keys.count("patch_size", 16, 1e5);
  out.num_channels = keys.count("num_channels", 3, 1e4);
  out.activation = keys.activation("hidden_act", "gelu");
  out.dropout = keys.number("hidden_dropout_prob", 0.0, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_probs_dropout_prob", 0.0, 0, kMaxDropout);
  out.layer_norm_eps = keys.number("layer_norm_eps", 1e-12, 1e-30, 1);
  out.qkv_bias = keys.flag("qkv_bias", true);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value to_hf(const VitOptions& options) {
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format("model.activation {} has no name in Hugging Face's ViT", options.activation),
      "train with gelu, gelu_tanh, relu or silu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("ViTForImageClassification")})},
       {"model_type", json::Value::string("vit")},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"image_size", integer(options.image_size)},
       {"patch_size", integer(options.patch_size)},
       {"num_channels", json::Value::integer(options.num_channels)},
       {"hidden_act", json::Value::string(activation)},
       {"hidden_dropout_prob", number(options.dropout)},
       {"attention_probs_dropout_prob",
        number(options.attention_dropout.value_or(options.dropout))},
       {"layer_norm_eps", number(options.layer_norm_eps)},
       {"qkv_bias", json::Value::boolean(options.qkv_bias)},
       {"initializer_range", number(options.init_std)}});
}

/// Tables are stored with a leading dimension for the image.
Composition compose(const ParamInfo& info) {
  static const StoredNames stored = {.base = "vit.",
                                     .outside = {"classifier."},
                                     .fused = ".qkv.",
                                     .apart = {".query.", ".key.", ".value."}};
  const Shape& shape = info.shape;
  if (info.name == "embeddings.cls_token" || info.name == "embeddings.position_embeddings")
    return Composition::of("vit." + info.name, {1, shape[0], shape[1]}).viewed(shape);
  return compose_encoder(info, stored);
}

/// transformers 5 has other names for a layer's modules.
std::string known_as(std::string name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kModules = {
      {{".attention.q_proj.", ".attention.attention.query."},
       {".attention.k_proj.", ".attention.attention.key."},
       {".attention.v_proj.", ".attention.attention.value."},
       {".attention.o_proj.", ".attention.output.dense."},
       {".mlp.fc1.", ".intermediate.dense."},
       {".mlp.fc2.", ".output.dense."}}};
  const std::string_view base = name.starts_with("vit.") ? "vit." : "";
  constexpr std::string_view kLayers = "layers.";
  if (std::string_view(name).substr(base.size()).starts_with(kLayers))
    name.replace(base.size(), kLayers.size(), "encoder.layer.");
  for (const auto& [theirs, known] : kModules) {
    const std::size_t at = name.find(theirs);
    if (at != std::string::npos) name.replace(at, theirs.size(), known);
  }
  return name;
}

bool may_be_unused(std::string_view name) {
  return name.starts_with("vit.pooler.") || name.starts_with("pooler.");
}

TESSERA_MODEL("vit",
              FamilyOf<VitOptions>{.presets = presets(),
                                   .adjustable = {{"dropout", {"attention_dropout"}},
                                                  {"attention_dropout"},
                                                  {"init_std"},
                                                  {"label_smoothing"}},
                                   .resolve = resolve_vit,
                                   .from_hf = from_hf,
                                   .to_hf = to_hf,
                                   .weight_map = {.compose = compose,
                                                  .base = "vit.",
                                                  .anchor = "vit.embeddings.cls_token",
                                                  .known_as = known_as,
                                                  .may_be_unused = may_be_unused},
                                   .objective = "image_classification"});

}  // namespace
}  // namespace tessera::models
