// SPDX-License-Identifier: Apache-2.0
// From options to a shape: presets, defaults that follow from other values, and the checks that
// concern several keys.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/family.h"
#include "tessera/models/gpt2_hf.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

namespace {

struct Preset {
  const char* name;
  std::int64_t num_layers, hidden_size, num_heads;
  std::int64_t max_positions = 0;  // 0: no opinion
};
constexpr Preset kPresets[] = {
    {"nano", 4, 128, 4},
    {"mini", 6, 384, 6},
    {"gpt2-small", 12, 768, 12},
    {"gpt2-medium", 24, 1024, 16},
    {"gpt2-large", 36, 1280, 20},
    {"gpt2-xl", 48, 1600, 25},
    {"gpt2-exlarge", 48, 1600, 32},
    {"gpt3", 96, 12288, 96, 2048},
};
constexpr std::int64_t kDefaultPositions = 1024;
constexpr std::int64_t kVocabMultiple = 64;  // so that rows of the head fill vector registers

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets)
    names.emplace_back(preset.name);
  return names;
}

/// Problems of the `model` section, with the place of the key.
class Checks {
 public:
  Checks(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}
  void require(bool holds, const std::string& path, std::string what, std::string fix) {
    if (!holds) problems_.add(origins_.place(path), path, std::move(what), std::move(fix));
  }

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

const Preset* find_preset(const ModelOptions& options, Checks& checks) {
  const bool sized = options.num_layers || options.hidden_size || options.num_heads;
  if (!options.preset && sized) return nullptr;
  const std::string wanted = options.preset.value_or("nano");
  for (const Preset& preset : kPresets) {
    if (wanted == preset.name) return &preset;
  }
  const auto names = preset_names();
  checks.require(false,
                 "model.preset",
                 fmt::format("unknown preset \"{}\"", wanted),
                 text::suggestion(wanted, names));
  return &kPresets[0];
}

void set_sizes(const ModelOptions& options,
               const Preset* preset,
               Gpt2Shape& shape,
               Checks& checks) {
  const auto pick = [&](const std::optional<std::int64_t>& given,
                        std::int64_t Preset::*of_preset,
                        const char* key) {
    checks.require(given || preset,
                   fmt::format("model.{}", key),
                   fmt::format("model.{} is missing", key),
                   "give num_layers, hidden_size and num_heads, or a preset that they override");
    return given ? *given : (preset ? preset->*of_preset : 1);
  };
  shape.num_layers = pick(options.num_layers, &Preset::num_layers, "num_layers");
  shape.hidden_size = pick(options.hidden_size, &Preset::hidden_size, "hidden_size");
  shape.num_heads = pick(options.num_heads, &Preset::num_heads, "num_heads");
  shape.num_kv_heads = options.num_kv_heads.value_or(shape.num_heads);
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(
      std::llround(options.mlp_ratio * static_cast<double>(shape.hidden_size)));
}

std::string divisors(std::int64_t number) {
  std::vector<std::string> out;
  for (std::int64_t d = 1; d <= number && d <= 1024; ++d) {
    if (number % d == 0) out.push_back(std::to_string(d));
  }
  return text::join(out, ", ");
}

void check_sizes(const Gpt2Shape& shape, Checks& checks) {
  const std::int64_t hidden = shape.hidden_size, heads = shape.num_heads;
  checks.require(heads > 0 && hidden % heads == 0,
                 "model.num_heads",
                 fmt::format("num_heads {} does not divide hidden_size {} ({} x {} + {})",
                             heads,
                             hidden,
                             heads,
                             hidden / std::max<std::int64_t>(heads, 1),
                             hidden % std::max<std::int64_t>(heads, 1)),
                 fmt::format("choose num_heads from {}", divisors(hidden)));
  checks.require(shape.num_kv_heads > 0 && heads % shape.num_kv_heads == 0,
                 "model.num_kv_heads",
                 fmt::format("num_kv_heads {} does not divide num_heads {}: each key/value head "
                             "must serve the same number of heads",
                             shape.num_kv_heads,
                             heads),
                 fmt::format("choose num_kv_heads from {}", divisors(heads)));
  checks.require(
      shape.ffn_hidden_size >= 1,
      "model.mlp_ratio",
      fmt::format("the hidden layer of the MLP would have {} channels", shape.ffn_hidden_size),
      "raise mlp_ratio, or give ffn_hidden_size");
}

void set_positions(const ModelOptions& options,
                   const Preset* preset,
                   std::optional<std::int64_t> sequence_length,
                   Gpt2Shape& shape,
                   Checks& checks) {
  const std::int64_t of_preset = options.preset && preset ? preset->max_positions : 0;
  shape.max_positions = options.max_positions.value_or(
      of_preset > 0 ? of_preset : sequence_length.value_or(kDefaultPositions));
  checks.require(!sequence_length || *sequence_length <= shape.max_positions,
                 "data.sequence_length",
                 fmt::format("sequence_length {} exceeds the number of positions of the model ({})",
                             sequence_length.value_or(0),
                             shape.max_positions),
                 fmt::format("data.sequence_length at most {}, or model.max_positions at least {}",
                             shape.max_positions,
                             sequence_length.value_or(0)));
}

void set_vocabulary(const ModelOptions& options,
                    std::int64_t tokenizer_size,
                    Gpt2Shape& shape,
                    Checks& checks) {
  const std::int64_t rounded =
      (tokenizer_size + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
  shape.tokenizer_size = tokenizer_size;
  shape.vocab_size = options.vocab_size.value_or(rounded);
  checks.require(
      shape.vocab_size >= std::max<std::int64_t>(tokenizer_size, 1),
      "model.vocab_size",
      fmt::format(
          "vocab_size {} is smaller than the tokenizer's {}", shape.vocab_size, tokenizer_size),
      fmt::format("remove it, or set at least {} ({} is faster)", tokenizer_size, rounded));
}

void set_rest(const ModelOptions& options, Gpt2Shape& shape, Checks& checks) {
  shape.embedding_dropout = options.embedding_dropout.value_or(options.dropout);
  shape.attention_dropout = options.attention_dropout.value_or(options.dropout);
  shape.residual_dropout = options.residual_dropout.value_or(options.dropout);
  shape.qkv_bias = options.qkv_bias;
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

json::Value description_of(const Gpt2Shape& shape) {
  ModelOptions out;
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
  out.tie_embeddings = shape.tie_embeddings;
  out.activation = shape.activation;
  out.layer_norm_eps = shape.layer_norm_eps;
  out.init_std = shape.init_std;
  out.label_smoothing = shape.label_smoothing;
  return config::write(out);
}

/// For the blocks: sizes that were refused would only be refused again.
Gpt2Shape possible(Gpt2Shape shape) {
  shape.ffn_hidden_size = std::max<std::int64_t>(shape.ffn_hidden_size, 1);
  if (shape.num_heads > shape.hidden_size) shape.num_heads = shape.num_kv_heads = shape.hidden_size;
  return shape;
}

Resolved resolve_gpt2(const ModelOptions& options,
                      std::int64_t tokenizer_size,
                      std::optional<std::int64_t> sequence_length,
                      config::Problems& problems,
                      const config::Origins& origins) {
  Checks checks(problems, origins);
  Gpt2Shape shape;
  const Preset* preset = find_preset(options, checks);
  set_sizes(options, preset, shape, checks);
  check_sizes(shape, checks);
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks);
  set_rest(options, shape, checks);
  return {.description = description_of(shape),
          .model = gpt2(possible(shape)),
          .vocab_size = shape.vocab_size,
          .tokenizer_size = shape.tokenizer_size,
          .max_positions = shape.max_positions,
          .num_parameters = shape.num_parameters(),
          .num_layers = shape.num_layers,
          .hidden_size = shape.hidden_size,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads};
}

}  // namespace

std::int64_t Gpt2Shape::num_parameters() const {
  const std::int64_t C = hidden_size, F = ffn_hidden_size;
  const std::int64_t outputs = C + 2 * (C / std::max<std::int64_t>(num_heads, 1)) * kv_heads();
  const std::int64_t norms = 4 * C, qkv = outputs * (C + (qkv_bias ? 1 : 0)),
                     projection = C * C + C;
  const std::int64_t mlp = F * C + F + C * F + C;
  const std::int64_t tables = (tie_embeddings ? 1 : 2) * vocab_size * C + max_positions * C;
  return num_layers * (norms + qkv + projection + mlp) + tables + 2 * C;
}

namespace {

// Upper bounds keep products of sizes far inside 64 bits; they are beyond any model that was ever
// trained.
void describe_sizes(ModelOptions& options, config::Fields& fields) {
  fields.field(
      "family",
      options.family,
      {.text = "Model family, by its Hugging Face model_type.", .choices = families().names()});
  fields.field("preset",
               options.preset,
               {.text = "Preset sizes; explicitly given fields override them.",
                .choices = preset_names(),
                .default_text = "nano if no size is given"});
  fields.field("num_layers",
               options.num_layers,
               {.text = "Number of transformer layers.",
                .min = 1,
                .max = 10'000,
                .default_text = "from the preset"});
  fields.field("hidden_size",
               options.hidden_size,
               {.text = "Width of the residual stream.",
                .min = 1,
                .max = 1e6,
                .default_text = "from the preset"});
  fields.field("num_heads",
               options.num_heads,
               {.text = "Number of attention heads; must divide hidden_size.",
                .min = 1,
                .max = 1e6,
                .default_text = "from the preset"});
  fields.field(
      "num_kv_heads",
      options.num_kv_heads,
      {.text = "Number of key/value heads (grouped-query attention); must divide num_heads.",
       .min = 1,
       .max = 1e6,
       .default_text = "num_heads"});
  fields.field(
      "vocab_size",
      options.vocab_size,
      {.text = "Number of rows of the token embedding; those beyond the tokenizer's ids are "
               "trained and never "
               "generated.",
       .unit = "tokens",
       .min = 1,
       .max = 1e8,
       .default_text =
           "the tokenizer's size rounded up to a multiple of 64, or the folder's with model.from"});
  fields.field(
      "max_positions",
      options.max_positions,
      {.text = "Maximum sequence length of the model.",
       .unit = "tokens",
       .min = 1,
       .max = 1e8,
       .default_text = "data.sequence_length, or 1024 if neither is given; 2048 for gpt3"});
  fields.field("ffn_hidden_size",
               options.ffn_hidden_size,
               {.text = "Hidden width of the MLP.",
                .min = 1,
                .max = 1e7,
                .default_text = "mlp_ratio x hidden_size"});
}

void describe_dropout(ModelOptions& options, config::Fields& fields) {
  constexpr double kMaxDropout = 0.999;
  fields.field("dropout",
               options.dropout,
               {.text = "Dropout probability of embedding, attention and residual dropout.",
                .min = 0,
                .max = kMaxDropout});
  fields.field("embedding_dropout",
               options.embedding_dropout,
               {.text = "Dropout probability after the embedding.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
  fields.field("attention_dropout",
               options.attention_dropout,
               {.text = "Dropout probability on attention weights.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
  fields.field("residual_dropout",
               options.residual_dropout,
               {.text = "Dropout probability on the outputs of attention and MLP.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
}

}  // namespace

void ModelOptions::describe(config::Fields& fields) {
  describe_sizes(*this, fields);
  describe_dropout(*this, fields);
  fields.field(
      "qkv_bias", qkv_bias, {.text = "Whether the query, key and value projection has a bias."});
  fields.field("tie_embeddings",
               tie_embeddings,
               {.text = "Whether the output head shares its weight with the token embedding."});
  fields.field("activation",
               activation,
               {.text = "Activation function of the MLP.", .choices = ops::activation_names()});
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
  fields.field("init_std",
               init_std,
               {.text = "Standard deviation of initial weights; residual projections divide it by "
                        "sqrt(2 x num_layers).",
                .min = 0,
                .max = 100});
  fields.field("label_smoothing",
               label_smoothing,
               {.text = "Label smoothing: fraction of the target distributed over the vocabulary, "
                        "in training only.",
                .min = 0,
                .max = 1});
  fields.field(
      "from",
      from,
      {.text = "Hugging Face folder, run or checkpoint from which weights and shape are loaded."});
}

TESSERA_MODEL(
    "gpt2",
    (Family{
        resolve_gpt2, preset_names(), gpt2_options_from_hf, gpt2_weights_from_hf, gpt2_hf_tensor}));

}  // namespace tessera::models
