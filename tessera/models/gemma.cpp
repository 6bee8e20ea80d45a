// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gemma.h"

#include <cmath>

namespace tessera::models {

void GemmaOptions::describe_gemma(config::Fields& fields) {
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

void read_gemma(const HfConfig& keys, const GemmaCaps& absent, GemmaOptions& out) {
  read_layer_types(keys, out);
  keys.refuse("use_bidirectional_attention",
              !keys.flag("use_bidirectional_attention", false),
              "causal attention");
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
  const auto cap = [](double value) {
    return value > 0 ? json::Value::number(value) : json::Value();
  };
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

}  // namespace tessera::models
