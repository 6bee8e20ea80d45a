// SPDX-License-Identifier: Apache-2.0
// The ModernBERT family: an encoder in which every third layer attends globally and the others
// locally (modern_encoder.h). Source: Warner et al. 2024, "Smarter, better, faster, longer".
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder_hf.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/modern_encoder.h"
#include "tessera/models/module_order.h"
#include "tessera/models/rotary_options.h"
#include "tessera/ops/activation.h"

namespace tessera::models {
namespace {

constexpr const char *kLocal = kSlidingAttention, *kGlobal = kFullAttention;
constexpr std::int64_t kGlobalEvery = 3;
constexpr const char* kCutoff = "initializer_cutoff_factor";
constexpr double kLeastCutoff = 0.5, kLargestCutoff = 8.0;

struct ModernBertOptions final : FamilyOptions {
  ModernBertOptions() { rotary.rope_theta = 160000.0; }

  RotaryOptions rotary, local_rotary;  ///< of global and of local layers
  std::int64_t local_attention = 128;
  std::vector<std::string> layer_types;
  bool attention_bias = false, mlp_bias = false, norm_bias = false, classifier_bias = false,
       decoder_bias = true;
  std::string activation = "gelu", classifier_activation = "gelu", classifier_pooling = "cls";
  double embedding_dropout = 0.0, attention_dropout = 0.0, mlp_dropout = 0.0,
         classifier_dropout = 0.0;
  double layer_norm_eps = 1e-5, init_cutoff = 2.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<ModernBertOptions>(*this);
  }
  void describe(config::Fields& fields) override;

 private:
  void describe_attention(config::Fields& fields);
};

/// Keys that have the same names in Hugging Face's config.json: biases and dropouts.
struct BiasKey {
  const char* key;
  bool ModernBertOptions::*member;
  const char* place;
};
constexpr std::array<BiasKey, 5> kBiases = {{
    {"attention_bias", &ModernBertOptions::attention_bias, "in the two projections of attention"},
    {"mlp_bias", &ModernBertOptions::mlp_bias, "in the projections of the MLP"},
    {"norm_bias", &ModernBertOptions::norm_bias, "in layer norms"},
    {"classifier_bias", &ModernBertOptions::classifier_bias, "in the dense layer of the heads"},
    {"decoder_bias", &ModernBertOptions::decoder_bias, "on the logits of masked tokens"},
}};
struct DropoutKey {
  const char* key;
  double ModernBertOptions::*member;
  const char* place;
};
constexpr std::array<DropoutKey, 4> kDropouts = {{
    {"embedding_dropout", &ModernBertOptions::embedding_dropout, "after the embedding"},
    {"attention_dropout",
     &ModernBertOptions::attention_dropout,
     "on attention weights and on the output of attention"},
    {"mlp_dropout",
     &ModernBertOptions::mlp_dropout,
     "inside the MLP; must be 0 if ranks share its features"},
    {"classifier_dropout", &ModernBertOptions::classifier_dropout, "in classification heads"},
}};

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 8192, kVocabulary = 50368;
  static const std::vector<Preset> all = {
      nano("modernbert-nano", 4, 128, 4, 0, 192),
      {"modernbert-base", 22, 768, 12, 0, 1152, kPositions, kVocabulary},
      {"modernbert-large", 28, 1024, 16, 0, 2624, kPositions, kVocabulary},
  };
  return all;
}

void ModernBertOptions::describe(config::Fields& fields) {
  describe_sizes(
      fields,
      {.presets = names_of(presets()),
       .preset_default = presets().front().name + " if no size is given",
       .positions_default = "8192 for the published presets, else data.sequence_length, or 1024",
       .ffn_default = "of the preset, or 3/2 x hidden_size"});
  describe_attention(fields);
  for (const BiasKey& bias : kBiases) {
    fields.field(bias.key,
                 this->*bias.member,
                 {.text = fmt::format("Whether there are biases {}.", bias.place)});
  }
  for (const DropoutKey& dropout : kDropouts) {
    fields.field(dropout.key,
                 this->*dropout.member,
                 {.text = fmt::format("Dropout probability {}.", dropout.place),
                  .min = 0,
                  .max = kMaxDropout});
  }
  describe_tie(fields);
  fields.field("activation",
               activation,
               {.text = "Activation function of the gate.", .choices = ops::activation_names()});
  fields.field("classifier_activation",
               classifier_activation,
               {.text = "Activation function of the dense layer in the heads.",
                .choices = ops::activation_names()});
  fields.field(
      "classifier_pooling",
      classifier_pooling,
      {.text = "Input of the head for whole texts: the first token, or the mean of all tokens.",
       .choices = {"cls", "mean"}});
  fields.field("layer_norm_eps",
               layer_norm_eps,
               {.text = "Epsilon added to the variance in layer norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
  describe_init(fields, "Standard deviation of initial weights.");
  fields.field("init_cutoff",
               init_cutoff,
               {.text = "Largest initial weight, in standard deviations.",
                .min = kLeastCutoff,
                .max = kLargestCutoff});
  describe_label_smoothing(fields);
  describe_from(fields);
}

void ModernBertOptions::describe_attention(config::Fields& fields) {
  rotary.describe_rotary(fields);
  local_rotary.describe_rotary(fields, "local_");
  fields.field("local_attention",
               local_attention,
               {.text = "Width of the attention in local layers: a token attends to tokens up to "
                        "half of it before and after.",
                .unit = "tokens",
                .min = 2,
                .max = 1e8});
  fields.field(
      "layer_types",
      layer_types,
      {.text = "Attention of each layer; empty: the first and every third layer are global.",
       .choices = {kLocal, kGlobal}});
}

/// Source of the initial weights, which are truncated normal: transformers'
/// ModernBertPreTrainedModel._init_weights. The output layer of a head for classes does not depend
/// on init_std.
HeadSpecs heads_of(const ModernBertOptions& options, const ModernShape& shape) {
  const auto out = static_cast<float>(shape.output_std());
  HeadSpec classifier = {.dense = "head.dense",
                         .dense_bias = options.classifier_bias,
                         .output_std = 1.0F / std::sqrt(static_cast<float>(shape.hidden_size)),
                         .activation = options.classifier_activation,
                         .norm = shape.norm(),
                         .norm_name = "head.norm",
                         .dropout = options.classifier_dropout,
                         .output = "classifier",
                         .output_bias = "classifier.bias"};
  HeadSpec decoder = classifier;
  decoder.output_std = out;
  decoder.dropout = 0.0;
  decoder.output = "decoder";
  decoder.output_bias = options.decoder_bias ? "decoder.bias" : "";
  return {.sample = classifier,
          .pooling = options.classifier_pooling == "mean" ? Pooling::Mean : Pooling::FirstToken,
          .dense_std = out,
          .token = classifier,
          .masked_lm = decoder};
}

/// The layers that are local: by layer_types, or by the rule.
std::vector<bool> local_layers(const ModernBertOptions& options, std::int64_t layers) {
  std::vector<bool> out;
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    out.push_back(at < options.layer_types.size() ? options.layer_types[at] == kLocal
                                                  : i % kGlobalEvery != 0);
  }
  return out;
}

ModernShape shape_of(const ModernBertOptions& options,
                     std::int64_t tokenizer_size,
                     std::optional<std::int64_t> sequence_length,
                     Checks& checks) {
  ModernShape shape;
  const Preset* preset = find_preset(options, presets(), presets().front().name, checks);
  set_layers(options, preset, shape, checks);
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(preset != nullptr && !options.hidden_size
                                                               ? preset->ffn_hidden_size
                                                               : shape.hidden_size * 3 / 2);
  check_heads(shape, checks);
  checks.require(shape.num_kv_heads == shape.num_heads,
                 "model.num_kv_heads",
                 "heads of modernbert share no keys and values",
                 "remove num_kv_heads");
  const std::int64_t channels = shape.hidden_size / std::max<std::int64_t>(shape.num_heads, 1);
  checks.require(
      channels > 0 && channels % 2 == 0,
      "model.num_heads",
      fmt::format("a head has {} channels, and rotary positions turn pairs of them", channels),
      "choose an even number of channels for each head");
  set_positions(options,
                preset,
                positions_bound(&options.rotary, &options.local_rotary, sequence_length),
                shape,
                checks);
  set_vocabulary(options, tokenizer_size, shape, checks, preset);
  const auto given = static_cast<std::int64_t>(options.layer_types.size());
  checks.require(given == 0 || given == shape.num_layers,
                 "model.layer_types",
                 fmt::format("layer_types has {} entries for {} layers", given, shape.num_layers),
                 "give one entry for each layer, or none");
  shape.local = local_layers(options, shape.num_layers);
  shape.local_attention = options.local_attention;
  shape.rotation = rotation_of(options.rotary, channels, checks);
  RotaryOptions local = options.local_rotary;
  local.rope_length = options.rotary.rope_length;
  shape.local_rotation = rotation_of(local, channels, checks, "local_");
  set_longest_text(options.rotary, &options.local_rotary, sequence_length, shape, checks);
  shape.attention_bias = options.attention_bias;
  shape.mlp_bias = options.mlp_bias;
  shape.norm_bias = options.norm_bias;
  shape.activation = options.activation;
  shape.embedding_dropout = options.embedding_dropout;
  shape.attention_dropout = options.attention_dropout;
  shape.mlp_dropout = options.mlp_dropout;
  shape.layer_norm_eps = options.layer_norm_eps;
  shape.init_std = options.init_std;
  shape.init_cutoff = options.init_cutoff;
  shape.tie_embeddings = options.tie_embeddings;
  return shape;
}

/// Returns a shape whose blocks can be listed, even if some sizes were refused.
ModernShape possible_of(ModernShape shape) {
  make_possible(shape);
  const std::int64_t channels = shape.hidden_size / shape.num_heads;
  if (channels % 2 != 0 || shape.hidden_size % shape.num_heads != 0) {
    shape.hidden_size = shape.num_heads * std::max<std::int64_t>(2, channels / 2 * 2);
    shape.num_kv_heads = shape.num_heads;
  }
  shape.rotation = possible(std::move(shape.rotation), shape.head_channels());
  shape.local_rotation = possible(std::move(shape.local_rotation), shape.head_channels());
  return shape;
}

json::Value description_of(const ModernBertOptions& options, const ModernShape& shape) {
  ModernBertOptions out = options;
  out.preset.reset();
  out.from.reset();
  out.num_layers = shape.num_layers;
  out.hidden_size = shape.hidden_size;
  out.num_heads = shape.num_heads;
  out.num_kv_heads.reset();
  out.vocab_size = shape.vocab_size;
  out.max_positions = shape.max_positions;
  out.ffn_hidden_size = shape.ffn_hidden_size;
  ModelOptions whole("modernbert", std::make_unique<ModernBertOptions>(std::move(out)));
  return config::write(whole);
}

Resolved resolve_modernbert(const ModernBertOptions& options,
                            std::int64_t tokenizer_size,
                            std::optional<std::int64_t> sequence_length,
                            config::Problems& problems,
                            const config::Origins& origins) {
  Checks checks(problems, origins);
  const ModernShape shape = shape_of(options, tokenizer_size, sequence_length, checks);
  const ModernShape usable = possible_of(shape);
  Resolved out = {.description = description_of(options, shape),
                  .trunk = modern_trunk(usable, heads_of(options, usable)),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = options.rotary.rope_length.value_or(shape.max_positions),
                  .num_layers = shape.num_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_heads};
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, presets().front().name, shape);
  return out;
}

/// rope_parameters of transformers 5 has one object per kind of layer; before, there were two keys.
/// rope_scaling, which files may have besides, is one for both.
void read_both_rotaries(const HfConfig& keys, ModernBertOptions& out) {
  constexpr double kLargest = 1e12;
  out.rotary.rope_theta = keys.number("global_rope_theta", 160000.0, 1, kLargest);
  out.local_rotary.rope_theta = keys.given("local_rope_theta") && keys.empty("local_rope_theta")
                                    ? out.rotary.rope_theta
                                    : keys.number("local_rope_theta", 10000.0, 1, kLargest);
  const auto read = [&](const json::Value& value, RotaryOptions& rotary) {
    const HfConfig rope(value);
    // transformers looks for both in the object around this one.
    rope.refuse("truncate", rope.flag("truncate", true), "true");
    rope.refuse("partial_rotary_factor", rope.number("partial_rotary_factor", 1, 0, 1) == 1, "1");
    read_rotary(rope, rope, *out.max_positions, rotary);
    take_length(keys, rotary, out.rotary);
  };
  if (!keys.empty("rope_parameters")) {
    const HfConfig both(*keys.find("rope_parameters"));
    if (!both.empty(kGlobal)) read(*both.find(kGlobal), out.rotary);
    if (!both.empty(kLocal)) read(*both.find(kLocal), out.local_rotary);
  }
  if (keys.empty("rope_scaling")) return;
  read(*keys.find("rope_scaling"), out.rotary);
  read(*keys.find("rope_scaling"), out.local_rotary);
}

void read_layers(const HfConfig& keys, ModernBertOptions& out) {
  out.layer_types = layer_types_of(keys);
  if (!out.layer_types.empty()) return;
  const std::int64_t every = keys.count("global_attn_every_n_layers", kGlobalEvery, 1e6);
  for (std::int64_t i = 0; i < out.num_layers.value(); ++i)
    out.layer_types.emplace_back(i % every != 0 ? kLocal : kGlobal);
}

ModernBertOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type",
              keys.word("model_type", "modernbert") == "modernbert",
              "\"model_type\": \"modernbert\"");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  ModernBertOptions out;
  out.num_layers = keys.count("num_hidden_layers", 22, 1e4);
  out.hidden_size = keys.count("hidden_size", 768, 1e6);
  out.num_heads = keys.count("num_attention_heads", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", 50368, 1e8);
  out.max_positions = keys.count("max_position_embeddings", 8192, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", 1152, 1e7);
  read_both_rotaries(keys, out);
  read_layers(keys, out);
  out.local_attention = keys.count("local_attention", 128, 1e8);
  keys.refuse("local_attention", out.local_attention >= 2, "at least 2");
  for (const BiasKey& bias : kBiases)
    out.*bias.member = keys.flag(bias.key, out.*bias.member);
  for (const DropoutKey& dropout : kDropouts)
    out.*dropout.member = keys.number(dropout.key, 0.0, 0, kMaxDropout);
  out.activation = keys.activation("hidden_activation", "gelu");
  out.classifier_activation = keys.activation("classifier_activation", "gelu");
  out.classifier_pooling = keys.word("classifier_pooling", "cls");
  keys.refuse("classifier_pooling",
              out.classifier_pooling == "cls" || out.classifier_pooling == "mean",
              "cls or mean");
  out.layer_norm_eps = keys.number("norm_eps", 1e-5, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  out.init_cutoff = keys.given(kCutoff) && keys.empty(kCutoff)
                        ? 3.0
                        : keys.number(kCutoff, 2.0, kLeastCutoff, kLargestCutoff);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  return out;
}

/// The period of global layers, which transformers before 5 needs; nothing if there is none.
std::optional<std::int64_t> period_of(const std::vector<bool>& local) {
  const auto layers = static_cast<std::int64_t>(local.size());
  for (std::int64_t every = 1; every <= layers; ++every) {
    bool fits = true;
    for (std::int64_t i = 0; i < layers; ++i)
      fits &= local[static_cast<std::size_t>(i)] == (i % every != 0);
    if (fits) return every;
  }
  return std::nullopt;
}

json::Value to_hf(const ModernBertOptions& options) {
  const std::string activation = activation_to_hf(options.activation),
                    of_heads = activation_to_hf(options.classifier_activation);
  TESSERA_REQUIRE(!activation.empty() && !of_heads.empty(),
                  Unsupported,
                  "an activation has no name in Hugging Face's ModernBERT",
                  "train with gelu, gelu_tanh, relu or silu");
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  const auto number = [](double value) { return real_to_hf(value); };
  const auto flag = [](bool value) { return json::Value::boolean(value); };
  const auto word = [](const std::string& value) { return json::Value::string(value); };
  const std::vector<bool> local = local_layers(options, options.num_layers.value());
  json::Value types = json::Value::array();
  for (const bool one : local)
    types.push_back(word(one ? kLocal : kGlobal));
  json::Value out =
      json::Value::object({{"architectures", json::Value::array({word("ModernBertForMaskedLM")})},
                           {"model_type", word("modernbert")},
                           {"vocab_size", integer(options.vocab_size.value())},
                           {"max_position_embeddings", integer(options.max_positions.value())},
                           {"hidden_size", integer(options.hidden_size.value())},
                           {"intermediate_size", integer(options.ffn_hidden_size.value())},
                           {"num_hidden_layers", integer(options.num_layers.value())},
                           {"num_attention_heads", integer(options.num_heads.value())},
                           {"hidden_activation", word(activation)},
                           {"local_attention", integer(options.local_attention)},
                           {"global_rope_theta", number(options.rotary.rope_theta)},
                           {"local_rope_theta", number(options.local_rotary.rope_theta)},
                           {"rope_parameters",
                            json::Value::object({{kGlobal, rotary_to_hf(options.rotary)},
                                                 {kLocal, rotary_to_hf(options.local_rotary)}})},
                           {"layer_types", std::move(types)},
                           {"norm_eps", number(options.layer_norm_eps)},
                           {"classifier_activation", word(of_heads)},
                           {"classifier_pooling", word(options.classifier_pooling)},
                           {"initializer_range", number(options.init_std)},
                           {kCutoff, number(options.init_cutoff)},
                           {"tie_word_embeddings", flag(options.tie_embeddings)}});
  if (options.rotary.rope_length) out["rope_length"] = integer(*options.rotary.rope_length);
  for (const RotaryOptions* rotary : {&options.rotary, &options.local_rotary}) {
    if (rotary->rope_scaling == "dynamic")
      out["max_position_embeddings"] = integer(rotary->rope_original_positions);
  }
  out["pad_token_id"] = json::Value();  // else the published model's, which a vocabulary may lack
  for (const BiasKey& bias : kBiases)
    out[bias.key] = flag(options.*bias.member);
  for (const DropoutKey& dropout : kDropouts)
    out[dropout.key] = number(options.*dropout.member);
  if (const auto every = period_of(local)) out["global_attn_every_n_layers"] = integer(*every);
  return out;
}

/// Queries, keys and values are rows of one matrix, and so are gate and up.
Composition compose(const ParamInfo& info) {
  constexpr std::array<std::string_view, 3> kOutside = {"head.", "decoder.", "classifier."};
  const auto has = [&](std::string_view part) { return info.name.find(part) != std::string::npos; };
  const bool outside = std::ranges::any_of(
      kOutside, [&](std::string_view begin) { return info.name.starts_with(begin); });
  const std::string theirs = (outside ? "" : "model.") + info.name;
  const Shape& shape = info.shape;
  const std::size_t fused = has(".Wqkv.") ? 3 : has(".Wi.") ? 2 : 0;
  if (fused == 0) return Composition::of(theirs, shape);
  std::int64_t rows = 1;
  for (std::size_t dim = 0; dim < fused; ++dim)
    rows *= shape[dim];
  Shape stored(shape.begin() + static_cast<std::ptrdiff_t>(fused), shape.end());
  stored.insert(stored.begin(), rows);
  return Composition::of(theirs, stored).viewed(shape);
}

/// True for heads of other tasks.
bool may_be_unused(std::string_view name) {
  return name.starts_with("head.") || name.starts_with("decoder.");
}

TESSERA_MODEL("modernbert",
              FamilyOf<ModernBertOptions>{
                  .presets = presets(),
                  .adjustable = {{"embedding_dropout"},
                                 {"attention_dropout"},
                                 {"mlp_dropout"},
                                 {"classifier_dropout"},
                                 {"init_std"},
                                 {"label_smoothing"}},
                  .resolve = resolve_modernbert,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "model.",
                                 .ties = {{"decoder.weight",
                                           "model.embeddings.tok_embeddings.weight",
                                           "decoder.bias"}},
                                 .anchor = "model.embeddings.tok_embeddings.weight",
                                 .may_be_unused = may_be_unused},
                  .objective = "masked_lm"});

TESSERA_MODULE_ORDER("modernbert",
                     {.base = "model.",
                      .modules = {"model.embeddings.tok_embeddings",
                                  "model.embeddings.norm",
                                  "model.layers.*.attn_norm",
                                  "model.layers.*.attn.Wqkv",
                                  "model.layers.*.attn.Wo",
                                  "model.layers.*.mlp_norm",
                                  "model.layers.*.mlp.Wi",
                                  "model.layers.*.mlp.Wo",
                                  "model.final_norm",
                                  "head.dense",
                                  "head.norm",
                                  "decoder",
                                  "classifier"}});

}  // namespace
}  // namespace tessera::models
