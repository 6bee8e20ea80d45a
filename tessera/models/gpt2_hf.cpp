// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2_hf.h"

#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::models {

namespace {

/// Typed reading of config.json. A key that is absent or null has the library's default.
class Keys {
 public:
  explicit Keys(const json::Value& config) : config_(config) {
    TESSERA_REQUIRE(
        config.is_object(),
        Format,
        config.place.text() + ": expected an object, found " + std::string(config.type_name()),
        "");
  }

  [[nodiscard]] const json::Value* find(const char* key) const {
    const json::Value* value = config_.find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  [[nodiscard]] std::int64_t count(const char* key, std::int64_t absent, double max) const {
    const json::Value* value = find(key);
    if (!value) return absent;
    const auto number = value->is_number() ? value->as_integer() : std::nullopt;
    if (!number || *number < 1 || static_cast<double>(*number) > max)
      fail(*value, key, fmt::format("a whole number from 1 to {}", max));
    return *number;
  }
  [[nodiscard]] double number(const char* key, double absent, double min, double max) const {
    const json::Value* value = find(key);
    if (!value) return absent;
    if (!value->is_number() || !(value->as_double() >= min && value->as_double() <= max)) {
      fail(*value, key, fmt::format("a number from {} to {}", min, max));
    }
    return value->as_double();
  }
  [[nodiscard]] bool flag(const char* key, bool absent) const {
    const json::Value* value = find(key);
    if (!value) return absent;
    if (!value->is_bool()) fail(*value, key, "true or false");
    return value->as_bool();
  }
  [[nodiscard]] std::string word(const char* key, const char* absent) const {
    const json::Value* value = find(key);
    if (!value) return absent;
    if (!value->is_string()) fail(*value, key, "a string");
    return value->as_string();
  }
  /// Refuses by name what would compute something else.
  void refuse(const char* key, bool harmless, const char* expected) const {
    if (harmless) return;
    const json::Value* value = find(key);
    throw Error(
        Error::Kind::Unsupported,
        fmt::format(
            "{}: \"{}\" is {}, which is not supported", value->place.text(), key, value->dump()),
        fmt::format("only models with {} can be read", expected));
  }

 private:
  [[noreturn]] static void fail(const json::Value& value,
                                const char* key,
                                const std::string& expected) {
    throw Error(
        Error::Kind::Format,
        fmt::format(
            "{}: \"{}\" is {}, expected {}", value.place.text(), key, value.dump(), expected),
        "mend config.json, or fetch it again");
  }
  const json::Value& config_;
};

std::string activation_from_hf(const Keys& keys) {
  const std::string name = keys.word("activation_function", "gelu_new");
  for (const char* tanh_form : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    if (name == tanh_form) return "gelu_tanh";
  }
  if (name == "swish") return "silu";
  for (const char* same : {"gelu", "relu", "silu"}) {
    if (name == same) return same;
  }
  keys.refuse("activation_function", false, "gelu_new, gelu, relu or silu");
  return {};
}

bool empty(const json::Value* value) {
  return !value || (value->is_object() && value->members().empty()) ||
         (value->is_array() && value->items().empty());
}

void refuse_other_mathematics(const Keys& keys) {
  keys.refuse("model_type", keys.word("model_type", "gpt2") == "gpt2", "\"model_type\": \"gpt2\"");
  keys.refuse(
      "scale_attn_weights", keys.flag("scale_attn_weights", true), "scale_attn_weights true");
  keys.refuse("scale_attn_by_inverse_layer_idx",
              !keys.flag("scale_attn_by_inverse_layer_idx", false),
              "scale_attn_by_inverse_layer_idx false");
  keys.refuse(
      "add_cross_attention", !keys.flag("add_cross_attention", false), "add_cross_attention false");
  keys.refuse("pruned_heads", empty(keys.find("pruned_heads")), "all their heads");
  keys.refuse(
      "quantization_config", empty(keys.find("quantization_config")), "plain float weights");
}

}  // namespace

ModelOptions gpt2_options_from_hf(const json::Value& config) {
  const Keys keys(config);
  refuse_other_mathematics(keys);
  ModelOptions out;
  out.family = "gpt2";
  out.num_layers = keys.count("n_layer", 12, 1e4);
  out.hidden_size = keys.count("n_embd", 768, 1e6);
  out.num_heads = keys.count("n_head", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", 50257, 1e8);
  out.max_positions = keys.count("n_positions", keys.count("n_ctx", 1024, 1e8), 1e8);
  out.ffn_hidden_size = keys.count("n_inner", 4 * *out.hidden_size, 1e7);
  out.mlp_ratio = static_cast<double>(*out.ffn_hidden_size) / static_cast<double>(*out.hidden_size);
  out.embedding_dropout = keys.number("embd_pdrop", 0.1, 0, 0.999);
  out.attention_dropout = keys.number("attn_pdrop", 0.1, 0, 0.999);
  out.residual_dropout = keys.number("resid_pdrop", 0.1, 0, 0.999);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  out.activation = activation_from_hf(keys);
  out.layer_norm_eps = keys.number("layer_norm_epsilon", 1e-5, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value gpt2_config_to_hf(const ModelOptions& options) {
  TESSERA_REQUIRE(options.qkv_bias,
                  Unsupported,
                  "model.qkv_bias is false, and Hugging Face's GPT-2 always has that bias",
                  "train with model.qkv_bias true");
  TESSERA_REQUIRE(
      !options.num_kv_heads || options.num_kv_heads == options.num_heads,
      Unsupported,
      fmt::format(
          "model.num_kv_heads is {}, and heads of Hugging Face's GPT-2 share no keys and values",
          options.num_kv_heads.value_or(0)),
      "train without model.num_kv_heads");
  static const std::map<std::string, std::string> activations = {{"gelu_tanh", "gelu_new"},
                                                                 {"gelu_new", "gelu_new"},
                                                                 {"gelu", "gelu"},
                                                                 {"relu", "relu"},
                                                                 {"silu", "silu"}};
  const auto activation = activations.find(options.activation);
  TESSERA_REQUIRE(
      activation != activations.end(),
      Unsupported,
      fmt::format("model.activation {} has no name in Hugging Face's GPT-2", options.activation),
      "train with gelu_tanh, gelu, relu or silu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return json::Value::number(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("GPT2LMHeadModel")})},
       {"model_type", json::Value::string("gpt2")},
       {"vocab_size", integer(options.vocab_size)},
       {"n_positions", integer(options.max_positions)},
       {"n_embd", integer(options.hidden_size)},
       {"n_layer", integer(options.num_layers)},
       {"n_head", integer(options.num_heads)},
       {"n_inner", integer(options.ffn_hidden_size)},
       {"activation_function", json::Value::string(activation->second)},
       {"layer_norm_epsilon", number(options.layer_norm_eps)},
       {"embd_pdrop", number(options.embedding_dropout.value_or(options.dropout))},
       {"attn_pdrop", number(options.attention_dropout.value_or(options.dropout))},
       {"resid_pdrop", number(options.residual_dropout.value_or(options.dropout))},
       {"initializer_range", number(options.init_std)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
}

HfTensor gpt2_hf_tensor(const ParamInfo& info) {
  const auto ends_with = [&](std::string_view end) { return info.name.ends_with(end); };
  const bool conv1d =
      ends_with(".c_attn.weight") || ends_with(".c_proj.weight") || ends_with(".c_fc.weight");
  const bool outside = info.name == "lm_head.weight";
  HfTensor out{(outside ? "" : "transformer.") + info.name, info.matrix_shape, conv1d};
  if (conv1d) std::swap(out.shape.at(0), out.shape.at(1));
  return out;
}

}  // namespace tessera::models
