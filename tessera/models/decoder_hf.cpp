// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder_hf.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

/// A list of positive numbers, one for each pair of rotated channels.
std::vector<double> factors_of(const HfConfig& rope, const char* key) {
  constexpr std::size_t kMost = 1U << 16U;
  const json::Value* const list = rope.find(key);
  const bool numbers = list != nullptr && list->is_array() && list->items().size() <= kMost &&
                       std::all_of(list->items().begin(), list->items().end(), [](const auto& one) {
                         return one.is_number() && one.as_double() > 0;
                       });
  rope.refuse(key, numbers, "a list of positive factors");
  std::vector<double> out;
  for (const json::Value& one : list->items())
    out.push_back(one.as_double());
  return out;
}

}  // namespace

void read_rotary(const HfConfig& keys, const char* object, DecoderOptions& out) {
  if (keys.empty(object)) return;
  const HfConfig rope(*keys.find(object));
  out.rope_theta = rope.number("rope_theta", out.rope_theta, 1, 1e12);
  const char* const type = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  out.rope_scaling = rope.word(type, "default");
  // Before it had a name, files of phi3 called it so.
  const bool pairs = rope.given("short_factor");
  if (out.rope_scaling == "su" || (out.rope_scaling == "yarn" && pairs))
    out.rope_scaling = "longrope";
  const auto names = rotary_scalings();
  rope.refuse(type,
              std::find(names.begin(), names.end(), out.rope_scaling) != names.end(),
              "one of default, linear, llama3, yarn, longrope and dynamic");
  if (out.rope_scaling == "default") return;
  const auto positions = static_cast<double>(out.max_positions.value_or(8192));
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::int64_t original = keys.count(kOriginal, out.max_positions.value_or(8192), 1e8);
  out.rope_original_positions =
      keys.empty(kOriginal) ? rope.count(kOriginal, original, 1e8) : original;
  const bool yarn = out.rope_scaling == "yarn", longrope = out.rope_scaling == "longrope";
  if (out.rope_scaling == "dynamic") out.rope_original_positions = out.max_positions.value_or(8192);
  if (longrope || out.rope_scaling == "dynamic") {
    if (!keys.empty("rope_length")) out.rope_length = keys.count("rope_length", 1, 1e8);
  }
  out.rope_factor = rope.number(
      "factor",
      yarn || longrope ? positions / static_cast<double>(out.rope_original_positions) : 1.0,
      1e-6,
      1e6);
  out.rope_low_freq_factor = rope.number("low_freq_factor", 1.0, 1e-6, 1e6);
  out.rope_high_freq_factor = rope.number("high_freq_factor", 4.0, 1e-6, 1e6);
  if (!rope.empty("attention_factor") && (yarn || longrope))
    out.rope_attention_factor = rope.number("attention_factor", 1.0, 1e-6, 1e6);
  if (longrope) {
    out.rope_short_factors = factors_of(rope, "short_factor");
    out.rope_long_factors = factors_of(rope, "long_factor");
  }
  if (!yarn) return;
  out.rope_beta_fast = rope.number("beta_fast", 32.0, 1e-6, 1e6);
  out.rope_beta_slow = rope.number("beta_slow", 1.0, 1e-6, 1e6);
  out.rope_mscale = rope.number("mscale", 0.0, 0, 1e6);
  out.rope_mscale_all_dim = rope.number("mscale_all_dim", 0.0, 0, 1e6);
  out.rope_truncate = rope.flag("truncate", true);
}

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

double partial_rotary_factor(const HfConfig& keys, double absent) {
  const double beside = keys.number("partial_rotary_factor", absent, 1e-6, 1);
  if (keys.empty("rope_parameters")) return beside;
  return HfConfig(*keys.find("rope_parameters")).number("partial_rotary_factor", beside, 1e-6, 1);
}

void set_partial_rotary_factor(json::Value& hf_config, double share) {
  hf_config["partial_rotary_factor"] = json::Value::number(share);
  hf_config["rope_parameters"]["partial_rotary_factor"] = json::Value::number(share);
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
  read_rotary(keys, keys.empty("rope_parameters") ? "rope_scaling" : "rope_parameters", out);
  out.tie_embeddings = keys.flag("tie_word_embeddings", hf.tied);
  out.activation = keys.activation(hf.activation_key, hf.activation);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.rms_norm_eps = keys.number("rms_norm_eps", hf.rms_norm_eps, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  if (hf.has_attention_bias) out.attention_bias = keys.flag("attention_bias", false);
  if (hf.has_mlp_bias) out.mlp_bias = keys.flag("mlp_bias", false);
}

namespace {

json::Value numbers_of(const std::vector<double>& list) {
  json::Value out = json::Value::array();
  for (const double one : list)
    out.push_back(json::Value::number(one));
  return out;
}

json::Value rotary_to_hf(const DecoderOptions& options) {
  json::Value out = json::Value::object({{"rope_type", json::Value::string(options.rope_scaling)},
                                         {"rope_theta", json::Value::number(options.rope_theta)}});
  if (options.rope_scaling == "default") return out;
  out["factor"] = json::Value::number(options.rope_factor);
  if (options.rope_scaling == "dynamic") return out;
  const auto kind = ops::rotary_scaling_from_name(options.rope_scaling);
  if (kind == ops::RotaryScalingKind::Linear) return out;
  out["original_max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
  if (kind == ops::RotaryScalingKind::Yarn) {
    out["beta_fast"] = json::Value::number(options.rope_beta_fast);
    out["beta_slow"] = json::Value::number(options.rope_beta_slow);
    if (!options.rope_truncate) out["truncate"] = json::Value::boolean(false);
    if (options.rope_mscale > 0) out["mscale"] = json::Value::number(options.rope_mscale);
    if (options.rope_mscale_all_dim > 0)
      out["mscale_all_dim"] = json::Value::number(options.rope_mscale_all_dim);
  }
  if (options.rope_attention_factor)
    out["attention_factor"] = json::Value::number(*options.rope_attention_factor);
  if (kind == ops::RotaryScalingKind::LongRope) {
    out["short_factor"] = numbers_of(options.rope_short_factors);
    out["long_factor"] = numbers_of(options.rope_long_factors);
  }
  if (kind != ops::RotaryScalingKind::Llama3) return out;
  out["low_freq_factor"] = json::Value::number(options.rope_low_freq_factor);
  out["high_freq_factor"] = json::Value::number(options.rope_high_freq_factor);
  return out;
}

}  // namespace

json::Value decoder_to_hf(const DecoderOptions& options, const HfDecoder& hf) {
  const std::string& architecture = hf.architecture;
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format(
          "model.activation {} has no name in Hugging Face's {}", options.activation, architecture),
      "train with silu, gelu_tanh, gelu or relu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return json::Value::number(value); };
  const json::Value rotary = rotary_to_hf(options);
  const bool scaled = options.rope_scaling != "default";
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(hf.model_type)},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"num_key_value_heads", integer(options.num_kv_heads)},
       {hf.activation_key, json::Value::string(activation)},
       {"rms_norm_eps", number(options.rms_norm_eps)},
       {"rope_theta", number(options.rope_theta)},
       {"rope_scaling", scaled ? rotary : json::Value()},
       {"rope_parameters", rotary},
       {"attention_dropout", number(options.attention_dropout)},
       {"initializer_range", number(options.init_std)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
  if (options.rope_length) out["rope_length"] = integer(options.rope_length);
  if (options.rope_scaling == "dynamic")
    out["max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
  if (hf.has_attention_bias) out["attention_bias"] = json::Value::boolean(options.attention_bias);
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
