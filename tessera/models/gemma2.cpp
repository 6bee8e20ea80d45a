// SPDX-License-Identifier: Apache-2.0
// Gemma 2: soft caps, every second layer with a window, norms before and after attention and MLP.
// Source: Gemma team 2024, "Gemma 2: improving open language models at a practical size".
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
      {.name = "gemma2-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .head_dim = 32,
       .bytes = true},
      {.name = "gemma2-2b",
       .num_layers = 26,
       .hidden_size = 2304,
       .num_heads = 8,
       .max_positions = 8192,
       .num_kv_heads = 4,
       .ffn_hidden_size = 9216,
       .head_dim = 256},
      {.name = "gemma2-9b",
       .num_layers = 42,
       .hidden_size = 3584,
       .num_heads = 16,
       .max_positions = 8192,
       .num_kv_heads = 8,
       .ffn_hidden_size = 14336,
       .head_dim = 256},
  };
  return all;
}

struct Gemma2Options final : DecoderOptions {
  Gemma2Options() {
    tie_embeddings = true;
    activation = "gelu_tanh";
    sliding_window = 4096;
  }
  std::optional<double> query_scalar;
  double score_softcap = 50.0, logit_softcap = 30.0;
  bool attention_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gemma2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
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
  const auto& own = dynamic_cast<const Gemma2Options&>(options);
  shape.attention_bias = shape.output_bias = own.attention_bias;
  shape.norm_offset = 1.0;
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden_size));
  if (own.query_scalar) shape.attention_scale = 1.0 / std::sqrt(*own.query_scalar);
  shape.score_softcap = own.score_softcap;
  shape.logit_softcap = own.logit_softcap;
  shape.norm_after_attention = "post_attention_layernorm";
  shape.norm_before_mlp = "pre_feedforward_layernorm";
  shape.norm_after_mlp = "post_feedforward_layernorm";
  shape.layers =
      windows_by_layer(options, shape.num_layers, [](std::int64_t i) { return i % 2 == 0; });
}

Resolved resolve_gemma2(const Gemma2Options& options,
                        std::int64_t tokenizer_size,
                        std::optional<std::int64_t> sequence_length,
                        config::Problems& problems,
                        const config::Origins& origins) {
  return resolve_decoder({"gemma2", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {.model_type = "gemma2",
                                   .layers = 26,
                                   .hidden = 2304,
                                   .heads = 8,
                                   .vocab = 256000,
                                   .positions = 8192,
                                   .ffn = 9216,
                                   .kv_heads = 4,
                                   .head_dim = 256,
                                   .activation_key = "hidden_activation",
                                   .activation = "gelu_pytorch_tanh",
                                   .tied = true};

Gemma2Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Gemma2Options out;
  read_decoder(keys, kDefaults, out);
  read_layer_types(keys, out);
  keys.refuse("use_bidirectional_attention",
              !keys.flag("use_bidirectional_attention", false),
              "causal attention");
  out.attention_bias = keys.flag("attention_bias", false);
  out.query_scalar = keys.number("query_pre_attn_scalar", 256.0, 1e-6, 1e6);
  // Absent means the published caps; null means none.
  const auto cap = [&](const char* key, double absent) {
    if (!keys.given(key)) return absent;
    return keys.empty(key) ? 0.0 : keys.number(key, absent, 1e-6, 1e6);
  };
  out.score_softcap = cap("attn_logit_softcapping", 50.0);
  out.logit_softcap = cap("final_logit_softcapping", 30.0);
  for (std::int64_t l = 0; keys.empty("layer_types") && l < *out.num_layers; ++l)
    out.layer_types.emplace_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  out.sliding_window =
      !keys.given("sliding_window") ? 4096 : keys.count_or_null("sliding_window", 1e8);
  return out;
}

json::Value to_hf(const Gemma2Options& options) {
  json::Value out = decoder_to_hf(options, "Gemma2ForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  out["query_pre_attn_scalar"] = json::Value::number(options.query_scalar.value_or(
      static_cast<double>(options.head_dim.value_or(*options.hidden_size / *options.num_heads))));
  const auto cap = [](double value) {
    return value > 0 ? json::Value::number(value) : json::Value();
  };
  out["attn_logit_softcapping"] = cap(options.score_softcap);
  out["final_logit_softcapping"] = cap(options.logit_softcap);
  out["sliding_window"] = window_to_hf(options);
  return out;
}

TESSERA_MODEL("gemma2",
              FamilyOf<Gemma2Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_gemma2,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("gemma2",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
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
