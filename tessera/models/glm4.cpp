// SPDX-License-Identifier: Apache-2.0
// GLM 4 (0414): norms before and after attention and MLP, and rotary positions that turn
// neighbouring channels of half of each head. Source: GLM team 2024, "ChatGLM: a family of large
// language models".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
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
       .head_dim = 128,
       .vocab_size = 151552},
      {.name = "glm4-32b",
       .num_layers = 61,
       .hidden_size = 6144,
       .num_heads = 48,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 23040,
       .head_dim = 128,
       .vocab_size = 151552,
       .values = {{"attention_bias", false}}},
  };
  return all;
}

struct Glm4Options final : DecoderOptions {
  Glm4Options() {
    attention_bias = true;
    rotary_share = 0.5;
  }

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Glm4Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields,
                            "Whether the projections to queries, keys and values have biases.");
    describe_rotary_share(fields);
    describe_rest(fields);
  }
};

void specialize(const Glm4Options& /*options*/, DecoderShape& shape) {
  shape.output_bias = false;
  shape.rotary_interleaved = true;
  shape.norm_after_attention = "post_self_attn_layernorm";
  shape.norm_after_mlp = "post_mlp_layernorm";
}

/// Gate and up projections are rows of one matrix; queries, keys and values stand apart.
Composition compose(const ParamInfo& info) {
  const bool fused = info.name.find(".gate_up_proj.") != std::string::npos;
  return fused ? compose_fused_decoder(info) : compose_decoder(info);
}

const HfDecoder kHf = {.model_type = "glm4",
                       .architecture = "Glm4ForCausalLM",
                       .layers = 40,
                       .vocab = 151552,
                       .positions = 131072,
                       .ffn = 13696,
                       .kv_heads = 2,
                       .head_dim = 128,
                       .rms_norm_eps = 1.5625e-7,
                       .has_attention_bias = true};

void read(const HfConfig& keys, Glm4Options& out) {
  out.rotary_share = partial_rotary_factor(keys, 0.5);
}

void write(const Glm4Options& options, json::Value& out) {
  set_partial_rotary_factor(out, options.rotary_share);
}

TESSERA_MODEL("glm4",
              DecoderFamilyOf<Glm4Options>{.presets = presets(),
                                           .hf = kHf,
                                           .specialize = specialize,
                                           .read = read,
                                           .write = write,
                                           .weight_map = decoder_weights(compose)});

TESSERA_MODULE_ORDER("glm4",
                     decoder_order({.mlp = {"gate_up_proj", "down_proj"},
                                    .norms = {"input_layernorm",
                                              "post_attention_layernorm",
                                              "post_self_attn_layernorm",
                                              "post_mlp_layernorm"}}));

}  // namespace
}  // namespace tessera::models
