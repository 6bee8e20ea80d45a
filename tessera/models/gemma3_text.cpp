// SPDX-License-Identifier: Apache-2.0
// Gemma 3, its text model: five layers with a window to one without, each kind with rotary
// positions of its own. Source: Gemma team 2025, "Gemma 3 technical report".
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "gemma3-nano",
       .num_layers = 6,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .head_dim = 32,
       .bytes = true},
      {.name = "gemma3-270m",
       .num_layers = 18,
       .hidden_size = 640,
       .num_heads = 4,
       .max_positions = 32768,
       .num_kv_heads = 1,
       .ffn_hidden_size = 2048,
       .head_dim = 256},
      {.name = "gemma3-1b",
       .num_layers = 26,
       .hidden_size = 1152,
       .num_heads = 4,
       .max_positions = 32768,
       .num_kv_heads = 1,
       .ffn_hidden_size = 6912,
       .head_dim = 256},
  };
  return all;
}

struct Gemma3Options final : DecoderOptions {
  Gemma3Options() {
    tie_embeddings = true;
    activation = "gelu_tanh";
    sliding_window = 4096;
    rope_theta = 1e6;
  }
  double local_rope_theta = 10000.0;
  std::optional<double> query_scalar;
  double score_softcap = 0.0, logit_softcap = 0.0;
  bool attention_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gemma3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field(
        "local_rope_theta",
        local_rope_theta,
        {.text = "Base of the rotary frequencies in layers with a window.", .min = 1, .max = 1e12});
    fields.field("query_scalar",
                 query_scalar,
                 {.text = "Scores are divided by the square root of this number.",
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
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the four projections of attention have biases."});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const Gemma3Options&>(options);
  shape.attention_bias = shape.output_bias = own.attention_bias;
  shape.norm_offset = 1.0;
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden_size));
  if (own.query_scalar) shape.attention_scale = 1.0 / std::sqrt(*own.query_scalar);
  shape.score_softcap = own.score_softcap;
  shape.logit_softcap = own.logit_softcap;
  shape.norm_after_attention = "post_attention_layernorm";
  shape.norm_before_mlp = "pre_feedforward_layernorm";
  shape.norm_after_mlp = "post_feedforward_layernorm";
  shape.qk_norm = QkNorm::PerHead;
  shape.local_rope_theta = own.local_rope_theta;
  shape.layers =
      windows_by_layer(options, shape.num_layers, [](std::int64_t i) { return (i + 1) % 6 != 0; });
  for (DecoderLayerKind& layer : shape.layers)
    layer.local_rotary = layer.window > 0;
}

Resolved resolve_gemma3_text(const Gemma3Options& options,
                             std::int64_t tokenizer_size,
                             std::optional<std::int64_t> sequence_length,
                             config::Problems& problems,
                             const config::Origins& origins) {
  return resolve_decoder({"gemma3_text", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {.model_type = "gemma3_text",
                                   .layers = 26,
                                   .hidden = 2304,
                                   .heads = 8,
                                   .vocab = 262208,
                                   .positions = 131072,
                                   .ffn = 9216,
                                   .kv_heads = 4,
                                   .head_dim = 256,
                                   .rope_theta = 1e6,
                                   .activation_key = "hidden_activation",
                                   .activation = "gelu_pytorch_tanh",
                                   .tied = true};

/// rope_parameters of transformers 5 hold one object for each kind of layer; before that the layers
/// with a window had rope_local_base_freq, and no scaling.
void read_both_rotaries(const HfConfig& keys, Gemma3Options& out) {
  out.local_rope_theta = keys.number("rope_local_base_freq", 10000.0, 1, 1e12);
  if (keys.empty("rope_parameters")) return;
  const HfConfig both(*keys.find("rope_parameters"));
  read_rotary(both, "full_attention", out);
  if (both.empty("sliding_attention")) return;
  const HfConfig local(*both.find("sliding_attention"));
  local.refuse("rope_type", local.word("rope_type", "default") == "default", "default");
  out.local_rope_theta = local.number("rope_theta", out.local_rope_theta, 1, 1e12);
}

/// Every n-th layer sees all tokens before.
void set_pattern(const HfConfig& keys, Gemma3Options& out) {
  if (!out.layer_types.empty()) return;
  const char* const key =
      keys.empty("sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const std::int64_t every = keys.count(key, 6, 1e6);
  for (std::int64_t i = 0; i < out.num_layers.value(); ++i)
    out.layer_types.emplace_back((i + 1) % every != 0 ? "sliding_attention" : "full_attention");
}

Gemma3Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Gemma3Options out;
  read_decoder(keys, kDefaults, out);
  read_layer_types(keys, out);
  keys.refuse("use_bidirectional_attention",
              !keys.flag("use_bidirectional_attention", false),
              "causal attention");
  out.attention_bias = keys.flag("attention_bias", false);
  out.query_scalar = keys.number("query_pre_attn_scalar", 256.0, 1e-6, 1e6);
  out.score_softcap =
      keys.empty("attn_logit_softcapping") ? 0.0 : keys.number("attn_logit_softcapping", 0, 0, 1e6);
  out.logit_softcap = keys.empty("final_logit_softcapping")
                          ? 0.0
                          : keys.number("final_logit_softcapping", 0, 0, 1e6);
  out.sliding_window =
      keys.empty("sliding_window") ? 4096 : keys.count("sliding_window", 4096, 1e8);
  read_both_rotaries(keys, out);
  set_pattern(keys, out);
  return out;
}

json::Value to_hf(const Gemma3Options& options) {
  json::Value out = decoder_to_hf(options, "Gemma3ForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  out["query_pre_attn_scalar"] = json::Value::number(options.query_scalar.value_or(
      static_cast<double>(options.head_dim.value_or(*options.hidden_size / *options.num_heads))));
  const auto cap = [](double value) {
    return value > 0 ? json::Value::number(value) : json::Value();
  };
  out["attn_logit_softcapping"] = cap(options.score_softcap);
  out["final_logit_softcapping"] = cap(options.logit_softcap);
  out["sliding_window"] = window_to_hf(options);
  const json::Value full = out["rope_parameters"];
  const auto local = json::Value::number(options.local_rope_theta);
  out["rope_parameters"] =
      json::Value::object({{"full_attention", full},
                           {"sliding_attention",
                            json::Value::object({{"rope_type", json::Value::string("default")},
                                                 {"rope_theta", local}})}});
  out["rope_local_base_freq"] = local;
  return out;
}

TESSERA_MODEL("gemma3_text",
              FamilyOf<Gemma3Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_gemma3_text,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("gemma3_text",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.self_attn.q_norm",
                                  "model.layers.*.self_attn.k_norm",
                                  "model.layers.*.mlp.gate_proj",
                                  "model.layers.*.mlp.up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.layers.*.pre_feedforward_layernorm",
                                  "model.layers.*.post_feedforward_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
