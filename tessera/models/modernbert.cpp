// SPDX-License-Identifier: Apache-2.0
// The ModernBERT family: an encoder with rotary positions, norms before the branches and gated
// MLPs, in which every third layer attends globally and the others locally. Source: Warner et al.
// 2024, "Smarter, better, faster, longer".
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
#include "tessera/models/mlp.h"
#include "tessera/models/module_order.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/rotary.h"

// Legend: B batch, T tokens, C embed, H heads, K channels of a head, F ffn.
namespace tessera::models {
namespace {

constexpr const char *kLocal = kSlidingAttention, *kGlobal = kFullAttention;
constexpr std::int64_t kGlobalEvery = 3;

struct ModernBertOptions final : FamilyOptions {
  double rope_theta = 160000.0, local_rope_theta = 10000.0;
  std::int64_t local_attention = 128;
  std::vector<std::string> layer_types;
  bool attention_bias = false, mlp_bias = false, norm_bias = false, classifier_bias = false,
       decoder_bias = true;
  std::string activation = "gelu", classifier_activation = "gelu", classifier_pooling = "cls";
  double embedding_dropout = 0.0, attention_dropout = 0.0, mlp_dropout = 0.0,
         classifier_dropout = 0.0;
  double layer_norm_eps = 1e-5;

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

/// The complete shape of a model.
struct ModernShape : Sizes {
  ModernBertOptions options;  ///< for everything but sizes
  std::vector<bool> local;    ///< for each layer: attends locally
};

NormSpec norm_of(const ModernBertOptions& options) {
  return {.kind = NormKind::LayerNorm, .eps = options.layer_norm_eps, .bias = options.norm_bias};
}

TrunkOutput output_of(const ModernShape& shape, HeadSpecs heads) {
  return {.hidden_size = shape.hidden_size,
          .norm = norm_of(shape.options),
          .norm_name = "final_norm",
          .vocabulary = {"embeddings.tok_embeddings.weight",
                         shape.vocab_size,
                         shape.options.tie_embeddings},
          .init_std = shape.options.init_std,
          .causal = false,
          .heads = std::move(heads)};
}

class ModernEmbeddings final : public nn::Block {
 public:
  explicit ModernEmbeddings(const ModernShape& shape)
      : shape_(shape), norm_(norm_of(shape.options)) {}

  void declare(nn::Params& params) override {
    words_ = declare_table(params, output_of(shape_, {}));
    norm_.declare(params, "norm", shape_.hidden_size);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override { return norm_.grid_obstacle(); }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC =
        norm_(nn::embedding(batch.tensor("input_ids"), *words_, context), context);
    const ops::DropoutKey key = context.dropout("embedding", shape_.options.embedding_dropout);
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
        mlp_(mlp_of(shape)),
        attention_norm_(layer == 0 ? NormSpec{.kind = NormKind::None} : norm_of(shape.options)),
        mlp_norm_(norm_of(shape.options)) {}

  void declare(nn::Params& params) override {
    attention_norm_.declare(params, "attn_norm", shape_.hidden_size);
    attention_.declare(params);
    mlp_norm_.declare(params, "mlp_norm", shape_.hidden_size);
    mlp_.declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const nn::Normed begin = attention_norm_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle =
        mlp_norm_.residual(begin.x_BTC,
                           context,
                           y_BTC,
                           context.dropout("attention_output", shape_.options.attention_dropout));
    return {
        .flow = {.diff = {nn::add_dropout(middle.x_BTC, mlp_(middle.normed_BTC, context), {})}}};
  }

 private:
  /// Projections to the residual stream are initialized smaller the more of them there are.
  static Init output_init(const ModernShape& shape) {
    return Init::normal(shape.options.init_std /
                        std::sqrt(2.0 * static_cast<double>(shape.num_layers)));
  }

  static SelfAttentionSpec attention_of(const ModernShape& shape, std::int64_t layer) {
    const std::int64_t channels = shape.hidden_size / shape.num_heads;
    const bool local = shape.local.at(static_cast<std::size_t>(layer));
    return {.hidden_size = shape.hidden_size,
            .num_heads = shape.num_heads,
            .num_kv_heads = shape.num_heads,
            .head_dim = channels,
            .qkv_name = "attn.Wqkv",
            .output_name = "attn.Wo",
            .qkv_bias = shape.options.attention_bias,
            .output_bias = shape.options.attention_bias,
            .qkv_init = Init::normal(shape.options.init_std),
            .output_init = output_init(shape),
            .dropout = shape.options.attention_dropout,
            .causal = false,
            .rotary_frequencies = ops::rotary_frequencies(
                channels, local ? shape.options.local_rope_theta : shape.options.rope_theta),
            .max_positions = shape.max_positions,
            .window = local ? shape.options.local_attention / 2 : 0};
  }

  static MlpSpec mlp_of(const ModernShape& shape) {
    return {.hidden_size = shape.hidden_size,
            .ffn_hidden_size = shape.ffn_hidden_size,
            .input_name = "mlp.Wi",
            .output_name = "mlp.Wo",
            .bias = shape.options.mlp_bias,
            .input_init = Init::normal(shape.options.init_std),
            .output_init = output_init(shape),
            .activation = shape.options.activation,
            .gated = true,
            .dropout = shape.options.mlp_dropout};
  }
  ModernShape shape_;
  SelfAttention attention_;
  Mlp mlp_;
  Norm attention_norm_, mlp_norm_;
};

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

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 8192, kVocabulary = 50368;
  static const std::vector<Preset> all = {
      {.name = "modernbert-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .ffn_hidden_size = 192,
       .bytes = true},
      {"modernbert-base", 22, 768, 12, kPositions, 0, 1152, 0, false, kVocabulary},
      {"modernbert-large", 28, 1024, 16, kPositions, 0, 2624, 0, false, kVocabulary},
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
  describe_label_smoothing(fields);
  describe_from(fields);
}

void ModernBertOptions::describe_attention(config::Fields& fields) {
  fields.field("rope_theta",
               rope_theta,
               {.text = "Base of the rotary frequencies in layers with global attention.",
                .min = 1,
                .max = 1e12});
  fields.field("local_rope_theta",
               local_rope_theta,
               {.text = "Base of the rotary frequencies in local layers.", .min = 1, .max = 1e12});
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

HeadSpecs heads_of(const ModernBertOptions& options) {
  HeadSpec classifier = {.dense = "head.dense",
                         .dense_bias = options.classifier_bias,
                         .activation = options.classifier_activation,
                         .norm = norm_of(options),
                         .norm_name = "head.norm",
                         .dropout = options.classifier_dropout,
                         .output = "classifier",
                         .output_bias = "classifier.bias"};
  HeadSpec decoder = classifier;
  decoder.dropout = 0.0;
  decoder.output = "decoder";
  decoder.output_bias = options.decoder_bias ? "decoder.bias" : "";
  return {.sample = classifier,
          .pooling = options.classifier_pooling == "mean" ? Pooling::Mean : Pooling::FirstToken,
          .token = classifier,
          .masked_lm = decoder};
}

/// Which layers are local: by layer_types, or by the rule.
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
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks, preset);
  const auto given = static_cast<std::int64_t>(options.layer_types.size());
  checks.require(given == 0 || given == shape.num_layers,
                 "model.layer_types",
                 fmt::format("layer_types has {} entries for {} layers", given, shape.num_layers),
                 "give one entry for each layer, or none");
  shape.options = options;
  shape.local = local_layers(options, shape.num_layers);
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
  Resolved out = {.description = description_of(options, shape),
                  .trunk = modern_trunk(possible_of(shape), heads_of(options)),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
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

/// rope_parameters of transformers 5 has one object per kind of layer; before, there were two keys.
void read_both_rotaries(const HfConfig& keys, ModernBertOptions& out) {
  constexpr double kLargest = 1e12;
  out.rope_theta = keys.number("global_rope_theta", 160000.0, 1, kLargest);
  out.local_rope_theta = keys.given("local_rope_theta") && keys.empty("local_rope_theta")
                             ? out.rope_theta
                             : keys.number("local_rope_theta", 10000.0, 1, kLargest);
  if (keys.empty("rope_parameters")) return;
  const HfConfig both(*keys.find("rope_parameters"));
  const auto theta_of = [&](const char* kind, double absent) {
    if (both.empty(kind)) return absent;
    const HfConfig one(*both.find(kind));
    one.refuse("rope_type", one.word("rope_type", "default") == "default", "default");
    return one.number("rope_theta", absent, 1, kLargest);
  };
  out.rope_theta = theta_of(kGlobal, out.rope_theta);
  out.local_rope_theta = theta_of(kLocal, out.local_rope_theta);
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

json::Value rotary_to_hf(const ModernBertOptions& options) {
  const auto of = [](double theta) {
    return json::Value::object(
        {{"rope_type", json::Value::string("default")}, {"rope_theta", real_to_hf(theta)}});
  };
  return json::Value::object(
      {{kGlobal, of(options.rope_theta)}, {kLocal, of(options.local_rope_theta)}});
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
                           {"global_rope_theta", number(options.rope_theta)},
                           {"local_rope_theta", number(options.local_rope_theta)},
                           {"rope_parameters", rotary_to_hf(options)},
                           {"layer_types", std::move(types)},
                           {"norm_eps", number(options.layer_norm_eps)},
                           {"classifier_activation", word(of_heads)},
                           {"classifier_pooling", word(options.classifier_pooling)},
                           {"initializer_range", number(options.init_std)},
                           {"tie_word_embeddings", flag(options.tie_embeddings)}});
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
