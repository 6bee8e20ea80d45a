// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gemma.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {

void GemmaOptions::describe_gemma(config::Fields& fields) {
  fields.field("query_scalar",
               query_scalar,
               {.text = "Attention scores are divided by the square root of this number.",
                .min = 0,
                .max = 1e6,
                .above_min = true,
                .default_text = "head_dim"});
  fields.field("score_softcap",
               score_softcap,
               {.text = "Soft cap of attention scores; 0 disables it.", .min = 0, .max = 1e6});
  fields.field("logit_softcap",
               logit_softcap,
               {.text = "Soft cap of the logits; 0 disables it.", .min = 0, .max = 1e6});
  describe_attention_bias(fields);
  describe_windows(fields);
  describe_rest(fields);
}

void specialize_gemma(DecoderShape& shape) {
  shape.norm_offset = 1.0;
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden_size));
}

void specialize_gemma(const GemmaOptions& options, DecoderShape& shape) {
  specialize_gemma(shape);
  if (options.query_scalar) shape.attention_scale = 1.0 / std::sqrt(*options.query_scalar);
  shape.score_softcap = options.score_softcap;
  shape.logit_softcap = options.logit_softcap;
  shape.norm_after_attention = "post_attention_layernorm";
  shape.norm_before_mlp = "pre_feedforward_layernorm";
  shape.norm_after_mlp = "post_feedforward_layernorm";
}

namespace {

void require_causal(const HfConfig& keys) {
  keys.refuse("use_bidirectional_attention",
              !keys.flag("use_bidirectional_attention", false),
              "causal attention");
}

}  // namespace

void read_gemma(const HfConfig& keys, const GemmaCaps& absent, GemmaOptions& out) {
  read_layer_types(keys, out);
  require_causal(keys);
  out.query_scalar = keys.number("query_pre_attn_scalar", 256.0, 1e-6, 1e6);
  const auto cap = [&](const char* key, double otherwise) {
    if (!keys.given(key)) return otherwise;
    return keys.empty(key) ? 0.0 : keys.number(key, otherwise, 1e-6, 1e6);
  };
  out.score_softcap = cap("attn_logit_softcapping", absent.score);
  out.logit_softcap = cap("final_logit_softcapping", absent.logit);
}

void write_gemma(const GemmaOptions& options, json::Value& hf_config) {
  hf_config["query_pre_attn_scalar"] = json::Value::number(options.query_scalar.value_or(
      static_cast<double>(options.head_dim.value_or(*options.hidden_size / *options.num_heads))));
  const auto cap = [](double value) { return value > 0 ? real_to_hf(value) : json::Value(); };
  hf_config["attn_logit_softcapping"] = cap(options.score_softcap);
  hf_config["final_logit_softcapping"] = cap(options.logit_softcap);
  hf_config["sliding_window"] = window_to_hf(options);
}

DecoderModules gemma_modules() {
  return {.norms = {"input_layernorm",
                    "post_attention_layernorm",
                    "pre_feedforward_layernorm",
                    "post_feedforward_layernorm"}};
}

GgufNames gemma_gguf_names(std::string architecture, std::string model_type) {
  GgufNames names = rotary_decoder_names(std::move(architecture), std::move(model_type));
  const auto gelu = json::Value::string("gelu_pytorch_tanh");
  names.implied = {{"hidden_act", gelu},
                   {"hidden_activation", gelu},
                   {"attention_bias", json::Value::boolean(false)}};
  names.raised = {"output_norm", "blk.*.attn_norm", "blk.*.ffn_norm"};
  require_key(names, "attention.key_length");
  return names;
}

GgufNames gemma_gguf_names_with_windows(std::string architecture, std::string model_type) {
  GgufNames names = gemma_gguf_names(std::move(architecture), std::move(model_type));
  names.keys.push_back({"attention.sliding_window", "sliding_window"});
  set_module(names, "blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm");
  set_module(names, "blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm");
  set_module(names, "blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm");
  names.raised.insert(names.raised.end(), {"blk.*.post_attention_norm", "blk.*.post_ffw_norm"});
  return names;
}

GgufNames::Values derived_gemma_gguf(const json::Value& config,
                                     std::int64_t layers_of_27b,
                                     const LayerRule& slides) {
  const HfConfig keys(config);
  const std::int64_t layers = keys.count("num_hidden_layers", 1, 1e4),
                     hidden = keys.count("hidden_size", 1, 1e6),
                     heads = keys.count("num_attention_heads", 1, 1e6);
  json::Value types = json::Value::array();
  for (const std::string& type : layer_types_of(layers, slides))
    types.push_back(json::Value::string(type));
  const std::int64_t width =
      layers == layers_of_27b ? hidden / heads : keys.count("head_dim", 256, 1e6);
  return {{"layer_types", std::move(types)},
          {"query_pre_attn_scalar", json::Value::number(static_cast<double>(width))}};
}

// ---- the first version ----

namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("gemma-nano", 4, 128, 4, 1, 352, 32),
      {"gemma-2b", 18, 2048, 8, 1, 16384, 8192, 256000, {{"rms_norm_eps", 1e-6}}, 256},
      {"gemma-7b", 28, 3072, 16, 0, 24576, 8192, 256000, {{"rms_norm_eps", 1e-6}}, 256},
  };
  return all;
}

struct Gemma1Options final : DecoderOptions {
  Gemma1Options() {
    tie_embeddings = true;
    activation = "gelu_tanh";
  }

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gemma1Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields);
    describe_rest(fields);
  }
};

void specialize(const Gemma1Options& /*options*/, DecoderShape& shape) {
  specialize_gemma(shape);
}

const HfDecoder kHf = {.model_type = "gemma",
                       .architecture = "GemmaForCausalLM",
                       .layers = 28,
                       .hidden = 3072,
                       .heads = 16,
                       .vocab = 256000,
                       .positions = 8192,
                       .ffn = 24576,
                       .head_dim = 256,
                       .activation = "gelu_pytorch_tanh",
                       .tied = true,
                       .has_attention_bias = true};

/// The published files say "gelu" but mean its tanh approximation; some have the right name under a
/// second key, which takes precedence.
void read(const HfConfig& keys, Gemma1Options& out) {
  require_causal(keys);
  const char* const key = keys.empty("hidden_activation") ? "hidden_act" : "hidden_activation";
  out.activation = keys.activation(key, "gelu_pytorch_tanh");
  if (out.activation == "gelu") out.activation = "gelu_tanh";
}

void write(const Gemma1Options& options, json::Value& out) {
  TESSERA_REQUIRE(options.activation != "gelu",
                  Unsupported,
                  "model.activation is gelu, which Hugging Face's Gemma reads as gelu_tanh",
                  "train with gelu_tanh");
  out["hidden_activation"] = out["hidden_act"];
}

TESSERA_MODEL(
    "gemma",
    DecoderFamilyOf<Gemma1Options>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER("gemma", decoder_order());

TESSERA_GGUF_NAMES("gemma", gemma_gguf_names("GemmaForCausalLM", "gemma"));

}  // namespace
}  // namespace tessera::models
