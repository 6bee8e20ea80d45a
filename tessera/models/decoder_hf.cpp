// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder_hf.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {

std::vector<std::string> layer_types_of(const HfConfig& keys) {
  if (keys.empty("layer_types")) return {};
  const json::Value& types = *keys.find("layer_types");
  keys.refuse("layer_types", types.is_array(), "a list");
  std::vector<std::string> out;
  for (const json::Value& type : types.items()) {
    const bool known = type.is_string() && (type.as_string() == kSlidingAttention ||
                                            type.as_string() == kFullAttention);
    keys.refuse("layer_types", known, "a list of sliding_attention and full_attention");
    out.push_back(type.as_string());
  }
  return out;
}

void read_layer_types(const HfConfig& keys, DecoderOptions& out) {
  out.layer_types = layer_types_of(keys);
}

json::Value window_to_hf(const DecoderOptions& options) {
  return options.sliding_window > 0 ? json::Value::integer(options.sliding_window) : json::Value();
}

void read_late_windows(const HfConfig& keys, DecoderOptions& out) {
  if (!keys.flag("use_sliding_window", false)) {
    out.layer_types.clear();
    return;
  }
  out.sliding_window = keys.empty("sliding_window") ? 4096 : keys.count("sliding_window", 0, 1e8);
  // The number of layers without a window, which may be none.
  const auto first = static_cast<std::int64_t>(keys.number("max_window_layers", 28, 0, 1e8));
  if (!out.layer_types.empty()) return;
  out.layer_types =
      layer_types_of(out.num_layers.value(), [first](std::int64_t i) { return i >= first; });
}

void late_windows_to_hf(const DecoderOptions& options, json::Value& hf_config) {
  hf_config["use_sliding_window"] = json::Value::boolean(options.sliding_window > 0);
  hf_config["sliding_window"] = window_to_hf(options);
  const auto first =
      std::find(options.layer_types.begin(), options.layer_types.end(), kSlidingAttention);
  hf_config["max_window_layers"] = json::Value::integer(first - options.layer_types.begin());
}

std::optional<std::int64_t> read_no_rope_interval(const HfConfig& keys) {
  const std::int64_t interval = keys.count("no_rope_layer_interval", 4, 1e6);
  if (keys.empty("no_rope_layers")) return interval;
  const json::Value& list = *keys.find("no_rope_layers");
  keys.refuse("no_rope_layers", list.is_array(), "a list");
  const auto turns = [&](std::size_t i) { return list.items()[i].as_integer().value_or(1) != 0; };
  const std::size_t count = list.items().size();
  std::size_t first = 0;
  while (first < count && turns(first))
    ++first;
  const std::size_t every = first < count ? first + 1 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (turns(i) != (every == 0 || (i + 1) % every != 0)) return std::nullopt;
  }
  return static_cast<std::int64_t>(every);
}

void write_no_rope(const std::vector<bool>& rotary, std::int64_t interval, json::Value& hf_config) {
  json::Value turns = json::Value::array();
  for (const bool turned : rotary)
    turns.push_back(json::Value::integer(turned ? 1 : 0));
  hf_config["no_rope_layers"] = std::move(turns);
  if (interval > 0) hf_config["no_rope_layer_interval"] = json::Value::integer(interval);
}

void read_decoder(const HfConfig& keys, const HfDecoder& hf, DecoderOptions& out) {
  const std::string& type = hf.model_type;
  const std::string expected = "\"model_type\": \"" + type + "\"";
  keys.refuse("model_type", keys.word("model_type", type.c_str()) == type, expected.c_str());
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  out.num_layers = keys.count("num_hidden_layers", hf.layers, 1e4);
  out.hidden_size = keys.count("hidden_size", hf.hidden, 1e6);
  out.num_heads = keys.count("num_attention_heads", hf.heads, 1e6);
  out.num_kv_heads = keys.count(
      "num_key_value_heads",
      hf.kv_heads > 0 && keys.empty("num_attention_heads") ? hf.kv_heads : *out.num_heads,
      1e6);
  out.vocab_size = keys.count("vocab_size", hf.vocab, 1e8);
  out.max_positions = keys.count("max_position_embeddings", hf.positions, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", hf.ffn, 1e7);
  if (!keys.empty("head_dim") || hf.head_dim > 0)
    out.head_dim = keys.count("head_dim", hf.head_dim, 1e6);
  out.rope_theta = keys.number("rope_theta", hf.rope_theta, 1, 1e12);
  read_rotary(keys, *out.max_positions, out);
  out.max_positions = stretched_positions(out, *out.max_positions);
  out.tie_embeddings = keys.flag("tie_word_embeddings", hf.tied);
  out.activation = keys.activation(hf.activation_key, hf.activation);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.classifier_dropout = keys.number_or_none("classifier_dropout", 0, kMaxDropout);
  out.rms_norm_eps = keys.number("rms_norm_eps", hf.rms_norm_eps, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  if (hf.has_attention_bias) out.attention_bias = keys.flag("attention_bias", false);
  if (hf.has_mlp_bias) out.mlp_bias = keys.flag("mlp_bias", false);
}

json::Value decoder_to_hf(const DecoderOptions& options, const HfDecoder& hf) {
  const std::string& architecture = hf.architecture;
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format(
          "model.activation {} has no name in Hugging Face's {}", options.activation, architecture),
      "train with silu, gelu_tanh, gelu or relu");
  TESSERA_REQUIRE(hf.has_experts || options.moe.num_experts == 0,
                  Unsupported,
                  fmt::format("Hugging Face's {} has no experts (model.moe.num_experts is {})",
                              architecture,
                              options.moe.num_experts),
                  "choose a family with experts in model.family");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(hf.model_type)},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"num_key_value_heads",
        integer(options.num_kv_heads ? options.num_kv_heads : options.num_heads)},
       {hf.activation_key, json::Value::string(activation)},
       {"rms_norm_eps", number(options.rms_norm_eps)},
       {"attention_dropout", number(options.attention_dropout)},
       {"initializer_range", number(options.init_std)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
  write_rotary(options, out);
  if (hf.has_attention_bias) out["attention_bias"] = json::Value::boolean(options.attention_bias);
  if (options.classifier_dropout) out["classifier_dropout"] = number(*options.classifier_dropout);
  if (hf.has_mlp_bias) out["mlp_bias"] = json::Value::boolean(options.mlp_bias);
  if (options.head_dim || hf.head_dim > 0) {
    out["head_dim"] =
        json::Value::integer(options.head_dim.value_or(*options.hidden_size / *options.num_heads));
  }
  if (!options.layer_types.empty()) {
    json::Value types = json::Value::array();
    for (const std::string& type : options.layer_types)
      types.push_back(json::Value::string(type));
    out["layer_types"] = std::move(types);
  }
  return out;
}

}  // namespace tessera::models
