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
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("olmo2-nano", 4, 128, 4, 0, 352),
      {"olmo2-1b",  16, 2048, 16, 0, 8192,  4096, 100352, {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {"olmo2-7b",  32, 4096, 32, 0, 11008, 4096, 100352, {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {"olmo2-13b", 40, 5120, 40, 0, 13824, 4096, 100352, {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
      {"olmo2-32b", 64, 5120, 40, 8, 27648, 4096, 100352, {{"rope_theta", 500000.0}, {"rms_norm_eps", 1e-6}}},
  };
  // clang-format on
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
