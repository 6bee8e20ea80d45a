// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/encoder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/self_attention.h"
#include "tessera/models/transformer_layer.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/activation.h"

// Legend: B batch, T tokens, C embed, F ffn.
namespace tessera::models {
namespace {

using enum LogicalAxis;

NormSpec norm_of(const EncoderShape& shape) {
  return {NormKind::LayerNorm, shape.layer_norm_eps};
}

TrunkOutput output_of(const EncoderShape& shape, const EncoderNames& names, HeadSpecs heads) {
  return {.hidden_size = shape.hidden_size,
          .norm = shape.pre_norm ? norm_of(shape) : NormSpec{.kind = NormKind::None},
          .norm_name = names.final_norm,
          .vocabulary = {names.words + ".weight", shape.vocab_size, shape.tie_embeddings},
          .init_std = shape.init_std,
          .causal = false,
          .heads = std::move(heads)};
}

class Embeddings final : public nn::Block {
 public:
  Embeddings(const EncoderShape& shape, const EncoderNames& names)
      : shape_(shape), names_(names), norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    const std::int64_t C = shape_.hidden_size;
    const Init init = Init::normal(shape_.init_std);
    const nn::Params::Tags table = {.without_prefix = true, .role = Role::PositionTable};
    words_ = declare_table(params, output_of(shape_, names_, {}));
    positions_ = params.add(
        names_.positions + ".weight", {shape_.position_rows(), C}, {None, Embed}, init, table);
    if (!names_.types.empty()) {
      types_ = params.add(
          names_.types + ".weight", {shape_.type_vocab_size, C}, {None, Embed}, init, table);
    }
    if (!shape_.pre_norm) norm_.declare(params, names_.embedding_norm, C, kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    at::Tensor x_BTC = nn::embedding(ids_BT, *words_, context) +
                       nn::embedding(positions_of(ids_BT, batch, context), *positions_, context);
    if (types_ != nullptr) {
      const at::Tensor types_BT =
          batch.has("token_type_ids") ? batch.tensor("token_type_ids") : at::zeros_like(ids_BT);
      x_BTC = x_BTC + nn::embedding(types_BT, *types_, context);
    }
    if (!shape_.pre_norm) x_BTC = norm_(x_BTC, context);
    return {.flow = {.diff = {nn::dropout(x_BTC, context.dropout("embedding", shape_.dropout))}}};
  }

 private:
  [[nodiscard]] at::Tensor positions_of(const at::Tensor& ids_BT,
                                        const nn::Batch& batch,
                                        const nn::StepContext& context) const {
    const at::Tensor starts_BS = document_starts(batch),
                     places_BT = nn::positions(ids_BT, shape_.max_positions, context, starts_BS);
    if (!shape_.counted_pad) return places_BT;
    const bool shared = context.shares_tokens();
    const at::Tensor all_BS = shared ? nn::all_tokens(ids_BT, *context.context_parallel) : ids_BT;
    const at::Tensor counts_BS = all_BS.ne(*shape_.counted_pad).to(at::kLong);
    at::Tensor sums_BS = counts_BS.cumsum(1);
    if (starts_BS.defined()) sums_BS = sums_BS - at::gather(sums_BS - counts_BS, 1, starts_BS);
    const at::Tensor rows_BS = sums_BS * counts_BS + *shape_.counted_pad;
    return shared ? nn::own_tokens(rows_BS, *context.context_parallel) : rows_BS;
  }

  EncoderShape shape_;
  EncoderNames names_;
  Norm norm_;
  Param* words_ = nullptr;
  Param* positions_ = nullptr;
  Param* types_ = nullptr;
};

SelfAttentionSpec attention_of(const EncoderShape& shape, const EncoderNames& names) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_heads,
          .head_dim = shape.hidden_size / shape.num_heads,
          .qkv_name = names.qkv,
          .output_name = names.attention_output,
          .qkv_bias = true,
          .output_bias = true,
          .qkv_init = init,
          .output_init = init,
          .dropout = shape.attention_dropout,
          .causal = false};
}

/// A layer with norms before its branches.
LayerSpec pre_norm_layer(const EncoderShape& shape, const EncoderNames& names) {
  const Init init = Init::normal(shape.init_std);
  return {.attention = attention_of(shape, names),
          .mlp = MlpSpec{.hidden_size = shape.hidden_size,
                         .ffn_hidden_size = shape.ffn_hidden_size,
                         .input_name = names.ffn_input,
                         .output_name = names.ffn_output,
                         .input_init = init,
                         .output_init = init,
                         .activation = shape.activation},
          .norm = norm_of(shape),
          .attention_norm_name = names.attention_norm,
          .mlp_norm_name = names.ffn_norm,
          .order = ResidualOrder::PreNorm,
          .residual_dropout = shape.dropout};
}

/// A layer with norms after its branches.
class Layer final : public nn::Block {
 public:
  Layer(const EncoderShape& shape, const EncoderNames& names)
      : shape_(shape),
        names_(names),
        activation_(ops::activation_from_name(shape.activation)),
        attention_(attention_of(shape, names)),
        attention_norm_(norm_of(shape)),
        ffn_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size;
    const Init init = Init::normal(shape_.init_std);
    attention_.declare(params);
    attention_norm_.declare(params, names_.attention_norm, C);
    in_weight_ = params.add(names_.ffn_input + ".weight", {F, C}, {Ffn, Embed}, init);
    in_bias_ = params.add(names_.ffn_input + ".bias", {F}, {Ffn}, Init::zeros());
    out_weight_ = params.add(names_.ffn_output + ".weight", {C, F}, {Embed, Ffn}, init);
    out_bias_ = params.add(names_.ffn_output + ".bias", {C}, {Embed}, Init::zeros());
    ffn_norm_.declare(params, names_.ffn_norm, C);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const double p = shape_.dropout;
    const at::Tensor& x_BTC = in.diff.at(0);
    const at::Tensor y_BTC = attention_(x_BTC, batch, *this, context);
    const double of_attention = shape_.drops_attention_output ? p : 0.0;
    const at::Tensor h_BTC =
        attention_norm_
            .residual(x_BTC, context, y_BTC, context.dropout("attention_output", of_attention))
            .normed_BTC;
    const at::Tensor f_BTF =
        nn::activate(nn::linear(h_BTC, *in_weight_, in_bias_, context), activation_);
    const at::Tensor z_BTC = nn::linear(f_BTF, *out_weight_, out_bias_, context);
    return {.flow = {
                .diff = {ffn_norm_.residual(h_BTC, context, z_BTC, context.dropout("mlp_output", p))
                             .normed_BTC}}};
  }

 private:
  EncoderShape shape_;
  EncoderNames names_;
  ops::Activation activation_;
  SelfAttention attention_;
  Norm attention_norm_, ffn_norm_;
  Param* in_weight_ = nullptr;
  Param* in_bias_ = nullptr;
  Param* out_weight_ = nullptr;
  Param* out_bias_ = nullptr;
};

}  // namespace

Trunk encoder_trunk(const EncoderShape& shape, const EncoderNames& names, HeadSpecs heads) {
  Trunk trunk{.output = output_of(shape, names, std::move(heads))};
  trunk.blocks.push_back(
      {"embeddings", [shape, names] { return std::make_unique<Embeddings>(shape, names); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    trunk.blocks.push_back(
        {fmt::format("{}.{}", names.layers, i), [shape, names]() -> std::unique_ptr<nn::Block> {
           if (shape.pre_norm)
             return std::make_unique<TransformerLayer>(pre_norm_layer(shape, names));
           return std::make_unique<Layer>(shape, names);
         }});
  }
  return trunk;
}

void EncoderOptions::describe_encoder(config::Fields& fields, const EncoderTexts& texts) {
  describe_sizes(fields,
                 {.presets = names_of(texts.presets),
                  .preset_default = texts.preset_default,
                  .positions_default = texts.positions_default,
                  .ffn_default = "of the preset, or 4 x hidden_size"});
  if (texts.types) {
    fields.field("type_vocab_size",
                 type_vocab_size,
                 {.text = "Number of token types, which distinguish the texts of a pair.",
                  .min = 1,
                  .max = 1e4});
  }
  describe_dropout(fields, fmt::format("Dropout probability {}.", texts.dropout_places));
  fields.field("attention_dropout",
               attention_dropout,
               {.text = "Dropout probability on attention weights.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
  fields.field("classifier_dropout",
               classifier_dropout,
               {.text = "Dropout probability in classification heads.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = "dropout"});
  describe_tie(fields);
  fields.field("activation",
               activation,
               {.text = "Activation function of the MLP.", .choices = ops::activation_names()});
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

namespace {

json::Value description_of(const EncoderOptions& options,
                           const EncoderShape& shape,
                           const std::string& family) {
  std::unique_ptr<FamilyOptions> copy = options.clone();
  copy->preset.reset();
  copy->from.reset();
  copy->num_layers = shape.num_layers;
  copy->hidden_size = shape.hidden_size;
  copy->num_heads = shape.num_heads;
  copy->num_kv_heads.reset();
  copy->vocab_size = shape.vocab_size;
  copy->max_positions = shape.max_positions;
  copy->ffn_hidden_size = shape.ffn_hidden_size;
  ModelOptions whole(family, std::move(copy));
  return config::write(whole);
}

void set_rest(const EncoderOptions& options, EncoderShape& shape, Checks& checks) {
  shape.type_vocab_size = options.type_vocab_size;
  shape.dropout = options.dropout;
  shape.attention_dropout = options.attention_dropout.value_or(options.dropout);
  shape.layer_norm_eps = options.layer_norm_eps;
  shape.init_std = options.init_std;
  shape.tie_embeddings = options.tie_embeddings;
  try {
    ops::activation_from_name(options.activation);
    shape.activation = options.activation;
  } catch (const Error& error) {
    checks.require(false, "model.activation", error.what(), error.fix());
  }
}

}  // namespace

Resolved resolve_encoder(const EncoderOptions& options,
                         const EncoderFamily& family,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins) {
  Checks checks(problems, origins);
  EncoderShape shape;
  shape.counted_pad = family.counted_pad;
  shape.pre_norm = family.pre_norm;
  shape.drops_attention_output = family.drops_attention_output;
  const std::string otherwise = family.presets.front().name;
  const Preset* preset = find_preset(options, family.presets, otherwise, checks);
  set_layers(options, preset, shape, checks);
  const bool preset_ffn = preset != nullptr && preset->ffn_hidden_size > 0 && !options.hidden_size;
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(preset_ffn ? preset->ffn_hidden_size
                                                                      : 4 * shape.hidden_size);
  check_heads(shape, checks);
  checks.require(shape.num_kv_heads == shape.num_heads,
                 "model.num_kv_heads",
                 fmt::format("heads of {} share no keys and values", family.name),
                 "remove num_kv_heads");
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks, preset);
  set_rest(options, shape, checks);
  EncoderShape possible = shape;
  make_possible(possible);
  Resolved out = {.description = description_of(options, shape, family.name),
                  .trunk = encoder_trunk(possible, family.names, family.heads),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_layers = shape.num_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_heads};
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, otherwise, shape);
  return out;
}

void encoder_from_hf(const HfConfig& keys, EncoderOptions& out) {
  for (const char* key : {"is_decoder", "add_cross_attention"})
    keys.refuse(key, !keys.flag(key, false), fmt::format("{} false", key).c_str());
  keys.refuse("position_embedding_type",
              keys.word("position_embedding_type", "absolute") == "absolute",
              "position_embedding_type absolute");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  out.num_layers = keys.count("num_hidden_layers", 12, 1e4);
  out.hidden_size = keys.count("hidden_size", 768, 1e6);
  out.num_heads = keys.count("num_attention_heads", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", 30522, 1e8);
  out.max_positions = keys.count("max_position_embeddings", 512, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", 3072, 1e7);
  out.type_vocab_size = keys.count("type_vocab_size", 2, 1e4);
  out.dropout = keys.number("hidden_dropout_prob", 0.1, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_probs_dropout_prob", 0.1, 0, kMaxDropout);
  if (!keys.empty("classifier_dropout"))
    out.classifier_dropout = keys.number("classifier_dropout", 0, 0, kMaxDropout);
  out.activation = keys.activation("hidden_act", "gelu");
  out.layer_norm_eps = keys.number("layer_norm_eps", 1e-12, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
}

json::Value encoder_config_of(const json::Value& facts) {
  json::Value out = json::Value::object();
  constexpr std::pair<const char*, const char*> kKeys[] = {
      {"vocab_size", "vocab_size"},
      {"hidden_size", "hidden_size"},
      {"intermediate_size", "ffn_hidden_size"},
      {"num_hidden_layers", "num_layers"},
      {"num_attention_heads", "num_heads"},
      {"max_position_embeddings", "max_positions"},
      {"type_vocab_size", "type_vocab_size"},
      {"hidden_act", "activation"},
      {"layer_norm_eps", "norm_eps"},
      {"tie_word_embeddings", "tie_embeddings"}};
  for (const auto& [theirs, ours] : kKeys)
    out[theirs] = *facts.find(ours);
  return out;
}

json::Value encoder_to_hf(const EncoderOptions& options,
                          const char* architecture,
                          const char* model_type) {
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format(
          "model.activation {} has no name in Hugging Face's {}", options.activation, architecture),
      "train with gelu, gelu_tanh, relu or silu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  const auto& classifier = options.classifier_dropout;
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(model_type)},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"type_vocab_size", json::Value::integer(options.type_vocab_size)},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"hidden_act", json::Value::string(activation)},
       {"hidden_dropout_prob", number(options.dropout)},
       {"attention_probs_dropout_prob",
        number(options.attention_dropout.value_or(options.dropout))},
       {"classifier_dropout", classifier ? number(*classifier) : json::Value()},
       {"layer_norm_eps", number(options.layer_norm_eps)},
       {"initializer_range", number(options.init_std)},
       {"position_embedding_type", json::Value::string("absolute")},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
}

Composition compose_encoder(const ParamInfo& info, const StoredNames& names) {
  const bool outside = std::ranges::any_of(
      names.outside, [&](const std::string& begin) { return info.name.starts_with(begin); });
  const std::string theirs = (outside ? "" : names.base) + info.name;
  const std::size_t at = theirs.find(names.fused);
  if (at == std::string::npos) return Composition::of(theirs, info.shape);
  // Composes [3, heads, channels, ...] from three tensors [heads * channels, ...].
  Shape stored = {info.shape[1] * info.shape[2]}, here = info.shape;
  stored.insert(stored.end(), info.shape.begin() + 3, info.shape.end());
  here.front() = 1;
  std::vector<Composition> parts;
  for (const std::string& apart : names.apart) {
    std::string name = theirs;
    name.replace(at, names.fused.size(), apart);
    parts.push_back(Composition::of(std::move(name), stored).viewed(here));
  }
  return Composition::concat(parts, 0);
}

}  // namespace tessera::models
