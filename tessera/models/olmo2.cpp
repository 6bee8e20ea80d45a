// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms only after attention and MLP, and over all channels of queries and of keys. Source:
// OLMo team 2024, "2 OLMo 2 Furious".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "olmo2-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "olmo2-1b",
       .num_layers = 16,
       .hidden_size = 2048,
       .num_heads = 16,
       .max_positions = 4096,
       .ffn_hidden_size = 8192,
       .vocab_size = 100352,
       .values = {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {.name = "olmo2-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 11008,
       .vocab_size = 100352,
       .values = {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {.name = "olmo2-13b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 4096,
       .ffn_hidden_size = 13824,
       .vocab_size = 100352,
       .values = {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {.name = "olmo2-32b",
       .num_layers = 64,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 4096,
       .num_kv_heads = 8,
       .ffn_hidden_size = 27648,
       .vocab_size = 100352,
       .values = {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
  };
  return all;
}

struct Olmo2Options final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Olmo2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields);
    describe_rest(fields);
  }
};

void specialize(const Olmo2Options& /*options*/, DecoderShape& shape) {
  shape.qk_norm = QkNorm::AllHeads;
  shape.norm_before_attention.clear();
  shape.norm_after_attention = "post_attention_layernorm";
  shape.norm_before_mlp.clear();
  shape.norm_after_mlp = "post_feedforward_layernorm";
}

const HfDecoder kHf = {.model_type = "olmo2",
                       .architecture = "Olmo2ForCausalLM",
                       .vocab = 50304,
                       .rms_norm_eps = 1e-5,
                       .has_attention_bias = true};

TESSERA_MODEL("olmo2",
              DecoderFamilyOf<Olmo2Options>{
                  .presets = presets(), .hf = kHf, .specialize = specialize});

TESSERA_MODULE_ORDER(
    "olmo2",
    decoder_order({.attention = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"},
                   .norms = {"post_attention_layernorm", "post_feedforward_layernorm"}}));

TESSERA_GGUF_NAMES("olmo2", [] {
  GgufNames names = rotary_decoder_names("Olmo2ForCausalLM", "olmo2");
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  remove_module(names, "blk.*.attn_norm");
  remove_module(names, "blk.*.ffn_norm");
  set_module(names, "blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm");
  set_module(names, "blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm");
  set_module(names, "blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm");
  set_module(names, "blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm");
  return names;
}());

}  // namespace
}  // namespace tessera::models
