// SPDX-License-Identifier: Apache-2.0
// GLM 4 (0414): norms before and after attention and MLP, and rotary positions that turn
// neighbouring channels of half of each head. Source: GLM team 2024, "ChatGLM: a family of large
// language models".
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
      {.name = "glm4-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "glm4-9b",
       .num_layers = 40,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 13696,
       .head_dim = 128},
  };
  return all;
}

struct Glm4Options final : DecoderOptions {
  bool attention_bias = true;
  double rotary_share = 0.5;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Glm4Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the projections to queries, keys and values have biases."});
    fields.field("rotary_share",
                 rotary_share,
                 {.text = "Share of the channels of a head that rotary positions turn.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const Glm4Options&>(options);
  shape.attention_bias = own.attention_bias;
  shape.rotary_share = own.rotary_share;
  shape.rotary_interleaved = true;
  shape.norm_after_attention = "post_self_attn_layernorm";
  shape.norm_after_mlp = "post_mlp_layernorm";
}

/// Gate and up projections are rows of one matrix; queries, keys and values stand apart.
Composition compose(const ParamInfo& info) {
  const bool fused = info.name.find(".gate_up_proj.") != std::string::npos;
  return fused ? compose_fused_decoder(info) : compose_decoder(info);
}

Resolved resolve_glm4(const Glm4Options& options,
                      std::int64_t tokenizer_size,
                      std::optional<std::int64_t> sequence_length,
                      config::Problems& problems,
                      const config::Origins& origins) {
  return resolve_decoder(
      {"glm4", presets(), specialize}, options, tokenizer_size, sequence_length, problems, origins);
}

const DecoderDefaults kDefaults = {.model_type = "glm4",
                                   .layers = 40,
                                   .vocab = 151552,
                                   .positions = 131072,
                                   .ffn = 13696,
                                   .kv_heads = 2,
                                   .head_dim = 128,
                                   .rms_norm_eps = 1.5625e-7};

Glm4Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Glm4Options out;
  read_decoder(keys, kDefaults, out);
  out.attention_bias = keys.flag("attention_bias", false);
  out.rotary_share = partial_rotary_factor(keys, 0.5);
  return out;
}

json::Value to_hf(const Glm4Options& options) {
  json::Value out = decoder_to_hf(options, "Glm4ForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  set_partial_rotary_factor(out, options.rotary_share);
  return out;
}

TESSERA_MODEL("glm4",
              FamilyOf<Glm4Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_glm4,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights(compose)});

TESSERA_MODULE_ORDER("glm4",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.mlp.gate_up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.layers.*.post_self_attn_layernorm",
                                  "model.layers.*.post_mlp_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
