// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/encoder_decoder_options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/relative_position.h"

namespace tessera::models {
namespace {

constexpr const char* kGate = "gelu_tanh";
constexpr std::string_view kGated = "gated-";

void set_sizes(const EncoderDecoderOptions& options,
               const Preset* preset,
               EncoderDecoderShape& shape,
               Checks& checks) {
  const Preset* const of_preset = options.hidden_size ? nullptr : preset;
  const bool of_preset_too = of_preset != nullptr && preset->ffn_hidden_size > 0;
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(of_preset_too ? preset->ffn_hidden_size
                                                                         : 4 * shape.hidden_size);
  shape.num_decoder_layers = options.num_decoder_layers.value_or(shape.num_layers);
  const bool sized = of_preset != nullptr && preset->head_dim > 0 && !options.num_heads;
  if (!options.head_dim && !sized) {
    check_heads(shape, checks);
    shape.head_dim = shape.hidden_size / std::max<std::int64_t>(shape.num_heads, 1);
  } else {
    shape.head_dim = options.head_dim.value_or(sized ? preset->head_dim : 0);
  }
  checks.require(shape.num_kv_heads == shape.num_heads,
                 "model.num_kv_heads",
                 "heads of this family share no keys and values",
                 "remove num_kv_heads");
}

void set_buckets(const EncoderDecoderOptions& options, EncoderDecoderShape& shape, Checks& checks) {
  shape.buckets = options.position_buckets;
  shape.max_distance = options.position_max_distance;
  checks.require(shape.max_distance > shape.buckets / 2,
                 "model.position_max_distance",
                 fmt::format("position_max_distance {} lies among the distances that have one of "
                             "{} buckets each",
                             shape.max_distance,
                             shape.buckets),
                 fmt::format("set at least {}, or fewer position_buckets", shape.buckets / 2 + 1));
}

void set_switches(const EncoderDecoderOptions& options, EncoderDecoderShape& shape) {
  shape.gated = options.gated;
  shape.activation = options.activation;
  shape.tie_embeddings = options.tie_embeddings;
  shape.scale_output = options.scale_output.value_or(options.tie_embeddings);
  shape.dropout = options.dropout;
  shape.drops_only_branches = options.drops_only_branches;
  shape.rms_norm_eps = options.rms_norm_eps;
  shape.init_factor = options.init_factor;
  shape.start_token = options.start_token;
  shape.pad_token = options.pad_token;
}

void check_tokens(const EncoderDecoderShape& shape, Checks& checks) {
  const std::pair<const char*, std::int64_t> tokens[] = {{"start_token", shape.start_token},
                                                         {"pad_token", shape.pad_token}};
  for (const auto& [key, id] : tokens) {
    checks.require(id < shape.vocab_size,
                   fmt::format("model.{}", key),
                   fmt::format("{} {} is not below vocab_size {}", key, id, shape.vocab_size),
                   "name a token of the vocabulary");
  }
}

json::Value description_of(const std::string& family,
                           const EncoderDecoderOptions& options,
                           const EncoderDecoderShape& shape) {
  std::unique_ptr<FamilyOptions> copy = options.clone();
  auto* out = dynamic_cast<EncoderDecoderOptions*>(copy.get());
  TESSERA_ASSERT(out != nullptr);
  out->preset.reset();
  out->from.reset();
  out->num_layers = shape.num_layers;
  out->hidden_size = shape.hidden_size;
  out->num_heads = shape.num_heads;
  out->num_kv_heads.reset();
  out->vocab_size = shape.vocab_size;
  out->max_positions = shape.max_positions;
  out->ffn_hidden_size = shape.ffn_hidden_size;
  out->num_decoder_layers = shape.num_decoder_layers;
  out->head_dim = shape.head_dim;
  out->scale_output = shape.scale_output;
  out->describe_experts(shape);
  ModelOptions whole(family, std::move(copy));
  return config::write(whole);
}

/// Returns a shape whose blocks can be listed, even if some sizes were refused.
EncoderDecoderShape possible(EncoderDecoderShape shape) {
  make_possible(shape);
  shape.head_dim = std::max<std::int64_t>(shape.head_dim, 1);
  // The layers of refused numbers of layers are not known.
  if (shape.encoder_experts)
    shape.encoder_experts->sparse.resize(static_cast<std::size_t>(shape.num_layers), false);
  if (shape.decoder_experts) {
    shape.num_decoder_layers = std::max<std::int64_t>(shape.num_decoder_layers, 1);
    shape.decoder_experts->sparse.resize(static_cast<std::size_t>(shape.num_decoder_layers), false);
  }
  return shape;
}

/// Reads the activation and whether it is gated: "relu", "gated-gelu".
void read_feed_forward(const HfConfig& keys, const char* absent, EncoderDecoderOptions& out) {
  std::string word = keys.word("feed_forward_proj", absent);
  out.gated = word.starts_with(kGated);
  if (out.gated) word.erase(0, kGated.size());
  // A gated "gelu" means the tanh approximation.
  if (word == "gelu" && out.gated) word = "gelu_new";
  const bool known = word == "relu" || word == "silu" || word == "gelu" || word == "gelu_new";
  keys.refuse("feed_forward_proj", known, "feed_forward_proj relu, gated-gelu or gated-silu");
  out.activation = word == "gelu_new" ? kGate : word;
}

/// Reads a token's id, which may be 0.
std::int64_t token_of(const HfConfig& keys, const char* key, std::int64_t absent) {
  const double id = keys.number(key, static_cast<double>(absent), 0, 1e8);
  keys.refuse(key, id == std::floor(id), "tokens that are whole numbers");
  return static_cast<std::int64_t>(id);
}

/// True if transformers 5 or a later version wrote the file.
bool is_of_transformers_5(const HfConfig& keys) {
  const std::string version = keys.word("transformers_version", "");
  return std::atoi(version.c_str()) >= 5;
}

std::string feed_forward_of(const EncoderDecoderOptions& options) {
  const bool gated = options.gated;
  const std::string& activation = options.activation;
  const std::string plain = activation_to_hf(activation);
  TESSERA_REQUIRE(!plain.empty() && !(gated && activation == "gelu"),
                  Unsupported,
                  fmt::format("model.activation {}{} has no name in Hugging Face's configuration",
                              activation,
                              gated ? " as a gate" : ""),
                  "train with relu, gelu_tanh or silu");
  if (!gated) return plain;
  return fmt::format("{}{}", kGated, plain == "gelu_new" ? "gelu" : plain);
}

}  // namespace

void EncoderDecoderOptions::describe_shape(config::Fields& fields) {
  fields.field("num_decoder_layers",
               num_decoder_layers,
               {.text = "Number of layers of the decoder; num_layers is the encoder's.",
                .min = 1,
                .max = 1e4,
                .default_text = "num_layers"});
  fields.field("head_dim",
               head_dim,
               {.text = "Channels of one attention head.",
                .min = 1,
                .max = 1e6,
                .default_text = "of the preset, or hidden_size / num_heads"});
  fields.field(
      "position_buckets",
      position_buckets,
      {.text = "Number of buckets of token distances; each has a learned bias for every head.",
       .min = static_cast<double>(ops::least_buckets(true)),
       .max = 1e5});
  fields.field("position_max_distance",
               position_max_distance,
               {.text = "Distance from which all tokens share one bucket.",
                .unit = "tokens",
                .min = 2,
                .max = 1e8});
}

void EncoderDecoderOptions::describe_all(config::Fields& fields,
                                         const std::vector<Preset>& presets) {
  describe_sizes(fields,
                 {.presets = names_of(presets),
                  .preset_default = presets.front().name + " if no size is given",
                  .positions_default = "data.sequence_length, or 1024",
                  .ffn_default = "of the preset, or 4 x hidden_size"});
  describe_shape(fields);
  describe_dropout(fields,
                   drops_only_branches
                       ? "Dropout probability on attention weights and on the outputs of every "
                         "branch."
                       : "Dropout probability after the embedding, on attention weights, inside "
                         "the MLP and on the outputs of every branch and stack.");
  fields.field("activation",
               activation,
               {.text = "Activation function of the MLP, or of its gate.",
                .choices = ops::activation_names()});
  fields.field("gated", gated, {.text = "Whether the MLP has a gate."});
  describe_tie(fields);
  fields.field("scale_output",
               scale_output,
               {.text = "Whether the head's input is divided by the square root of hidden_size.",
                .default_text = "tie_embeddings"});
  fields.field("rms_norm_eps",
               rms_norm_eps,
               {.text = "Epsilon added to the mean square in RMS norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
  fields.field("init_factor",
               init_factor,
               {.text = "Factor of the standard deviations of initial weights, which otherwise "
                        "depend on the number of inputs.",
                .min = 0,
                .max = 100});
  fields.field("start_token",
               start_token,
               {.text = "Token with which the decoder's input begins.", .min = 0, .max = 1e8});
  fields.field("pad_token",
               pad_token,
               {.text = "Token that replaces an ignored label in the decoder's input.",
                .min = 0,
                .max = 1e8});
  describe_label_smoothing(fields);
  describe_from(fields);
}

Resolved resolve_encoder_decoder(const std::string& family,
                                 const std::vector<Preset>& presets,
                                 const EncoderDecoderOptions& options,
                                 std::int64_t tokenizer_size,
                                 std::optional<std::int64_t> sequence_length,
                                 config::Problems& problems,
                                 const config::Origins& origins) {
  Checks checks(problems, origins);
  EncoderDecoderShape shape;
  const std::string otherwise = presets.front().name;
  const Preset* preset = find_preset(options, presets, otherwise, checks);
  set_layers(options, preset, shape, checks);
  set_sizes(options, preset, shape, checks);
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks, preset);
  set_buckets(options, shape, checks);
  set_switches(options, shape);
  check_tokens(shape, checks);
  options.add_experts(shape, checks);
  const EncoderDecoderShape usable = possible(shape);
  Resolved out = {.description = description_of(family, options, shape),
                  .trunk = encoder_decoder_trunk(usable),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_parameters = usable.num_parameters(),
                  .inactive_parameters = usable.inactive_parameters(),
                  .num_layers = shape.num_layers + shape.num_decoder_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_heads,
                  .tied_head = shape.tie_embeddings};
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, otherwise, shape);
  return out;
}

void read_encoder_decoder(const json::Value& hf_config,
                          const HfEncoderDecoder& defaults,
                          EncoderDecoderOptions& out) {
  const HfConfig keys(hf_config);
  const std::string& type = defaults.model_type;
  const std::string expected = "\"model_type\": \"" + type + "\"";
  keys.refuse("model_type", keys.word("model_type", type.c_str()) == type, expected.c_str());
  keys.refuse("is_encoder_decoder", keys.flag("is_encoder_decoder", true), "both stacks");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  out.num_layers = keys.count("num_layers", defaults.layers, 1e4);
  out.num_decoder_layers = keys.count("num_decoder_layers", *out.num_layers, 1e4);
  out.hidden_size = keys.count("d_model", defaults.hidden, 1e6);
  out.num_heads = keys.count("num_heads", defaults.heads, 1e6);
  out.head_dim = keys.count("d_kv", 64, 1e6);
  out.ffn_hidden_size = keys.count("d_ff", defaults.ffn, 1e7);
  out.vocab_size = keys.count("vocab_size", defaults.vocab, 1e8);
  out.position_buckets = keys.count("relative_attention_num_buckets", 32, 1e5);
  out.position_max_distance = keys.count("relative_attention_max_distance", 128, 1e8);
  const bool distances = out.position_buckets >= ops::least_buckets(/*bidirectional=*/true) &&
                         out.position_max_distance > out.position_buckets / 2;
  keys.refuse("relative_attention_num_buckets",
              distances,
              "at least 4 buckets, of which half reach less far than the longest distance");
  read_feed_forward(keys, defaults.feed_forward, out);
  out.dropout = keys.number("dropout_rate", 0.1, 0, kMaxDropout);
  out.rms_norm_eps = keys.number("layer_norm_epsilon", 1e-6, 1e-30, 1);
  out.init_factor = keys.number("initializer_factor", 1.0, 0, 100);
  out.pad_token = token_of(keys, "pad_token_id", 0);
  out.start_token = token_of(keys, "decoder_start_token_id", out.pad_token);
  // transformers 5 writes that the head is tied, whatever the model is.
  const bool said = keys.flag("tie_word_embeddings", defaults.tied);
  const bool newer = is_of_transformers_5(keys);
  out.scale_output =
      keys.flag("scale_decoder_outputs", said && (!newer || defaults.scaled_since_5));
  out.tie_embeddings = said && *out.scale_output;
}

std::string settle_head(const json::Value& hf_config,
                        bool own_head,
                        EncoderDecoderOptions& options) {
  const HfConfig keys(hf_config);
  const bool guess = options.tie_embeddings, said = keys.flag("tie_word_embeddings", guess);
  options.tie_embeddings = !own_head;
  if (guess == !own_head || (said && !own_head)) return "";
  return fmt::format(
      "config.json says that the output layer {} the token embedding, but the "
      "weights have {}: the weights decide (tie_embeddings {}, scale_output {})",
      guess ? "is tied to" : "is not tied to",
      own_head ? "two different matrices" : "one matrix for both",
      !own_head,
      options.scale_output.value_or(guess));
}

json::Value encoder_decoder_to_hf(const EncoderDecoderOptions& options,
                                  const HfEncoderDecoder& names) {
  const bool tied = options.tie_embeddings, scaled = options.scale_output.value();
  TESSERA_REQUIRE(
      tied == scaled,
      Unsupported,
      fmt::format("model.scale_output is {} and model.tie_embeddings {}, and Hugging Face's {} "
                  "divides the hidden states exactly where the head shares its weight",
                  scaled,
                  tied,
                  names.architecture),
      "train with scale_output as tie_embeddings");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(names.architecture)})},
       {"model_type", json::Value::string(names.model_type)},
       {"is_encoder_decoder", json::Value::boolean(true)},
       {"vocab_size", integer(options.vocab_size)},
       {"n_positions", integer(options.max_positions)},
       {"d_model", integer(options.hidden_size)},
       {"d_kv", integer(options.head_dim)},
       {"d_ff", integer(options.ffn_hidden_size)},
       {"num_layers", integer(options.num_layers)},
       {"num_decoder_layers", integer(options.num_decoder_layers)},
       {"num_heads", integer(options.num_heads)},
       {"relative_attention_num_buckets", json::Value::integer(options.position_buckets)},
       {"relative_attention_max_distance", json::Value::integer(options.position_max_distance)},
       {"feed_forward_proj", json::Value::string(feed_forward_of(options))},
       {"dropout_rate", number(options.dropout)},
       {"layer_norm_epsilon", number(options.rms_norm_eps)},
       {"initializer_factor", number(options.init_factor)},
       {"pad_token_id", json::Value::integer(options.pad_token)},
       {"decoder_start_token_id", json::Value::integer(options.start_token)},
       {"tie_word_embeddings", json::Value::boolean(tied)}});
}

Composition compose_encoder_decoder(const ParamInfo& info) {
  const Shape& shape = info.shape;
  // One of the tensors that form one parameter here, under its own name.
  const auto part = [&](const std::string& ours, const std::string& its) {
    std::string name = info.name;
    name.replace(name.rfind(ours), ours.size(), its);
    Shape stored = {info.numel() / shape.front() / shape.back(), shape.back()}, here = shape;
    here.front() = 1;
    return Composition::of(std::move(name), std::move(stored)).viewed(here);
  };
  const auto joined = [&](const std::string& ours, const std::vector<std::string>& theirs) {
    std::vector<Composition> parts;
    for (const std::string& its : theirs)
      parts.push_back(part(ours, its));
    return Composition::concat(parts, 0);
  };
  if (info.name.ends_with(".qkv.weight")) return joined(".qkv.", {".q.", ".k.", ".v."});
  if (info.name.ends_with(".EncDecAttention.kv.weight")) return joined(".kv.", {".k.", ".v."});
  if (info.name.ends_with(".EncDecAttention.q.weight")) return joined(".q.", {".q."});
  if (info.name.ends_with(".wi.weight") && shape.size() == 3)
    return joined(".wi.", {".wi_0.", ".wi_1."});
  return Composition::of(info.name, shape);
}

WeightMap encoder_decoder_weights() {
  return {.compose = compose_encoder_decoder,
          .ties = {{kEncoderDecoderHead, "shared.weight"},
                   {"encoder.embed_tokens.weight", "shared.weight"},
                   {"decoder.embed_tokens.weight", "shared.weight"}},
          // Old files contain a table that no layer reads.
          .is_buffer =
              [](std::string_view name) {
                return name.ends_with(".EncDecAttention.relative_attention_bias.weight");
              },
          .anchor = "shared.weight"};
}

std::vector<std::string> encoder_decoder_modules() {
  std::vector<std::string> out = {"shared"};
  for (const bool decoder : {false, true}) {
    const std::string stack = decoder ? "decoder" : "encoder", block = stack + ".block.*.layer.";
    const auto add = [&](int layer, const char* module) {
      out.push_back(fmt::format("{}{}.{}", block, layer, module));
    };
    for (const char* module : {"q", "k", "v", "o", "relative_attention_bias"})
      add(0, fmt::format("SelfAttention.{}", module).c_str());
    add(0, "layer_norm");
    if (decoder) {
      for (const char* module : {"q", "k", "v", "o"})
        add(1, fmt::format("EncDecAttention.{}", module).c_str());
      add(1, "layer_norm");
    }
    for (const char* module : {"wi", "wi_0", "wi_1", "wo"})
      add(decoder ? 2 : 1, fmt::format("DenseReluDense.{}", module).c_str());
    add(decoder ? 2 : 1, "layer_norm");
    out.push_back(stack + ".final_layer_norm");
  }
  out.emplace_back("lm_head");
  return out;
}

}  // namespace tessera::models
