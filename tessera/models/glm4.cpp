// SPDX-License-Identifier: Apache-2.0
// GLM 4 (0414): GLM with norms before and after attention and MLP.
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/glm.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("glm4-nano", 4, 128, 4, 2, 352),
      {"glm4-9b", 40, 4096, 32, 2, 13696, 32768, 151552, {}, 128},
      {"glm4-32b", 61, 6144, 48, 2, 23040, 32768, 151552, {{"attention_bias", false}}, 128},
  };
  return all;
}

struct Glm4Options final : GlmOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Glm4Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_glm(fields, presets()); }
};

void specialize(const Glm4Options& /*options*/, DecoderShape& shape) {
  specialize_glm(shape);
  shape.norm_after_attention = "post_self_attn_layernorm";
  shape.norm_after_mlp = "post_mlp_layernorm";
}

void read(const HfConfig& keys, Glm4Options& out) {
  read_glm(keys, out);
}

void write(const Glm4Options& options, json::Value& out) {
  write_glm(options, out);
}

TESSERA_MODEL("glm4",
              DecoderFamilyOf<Glm4Options>{.presets = presets(),
                                           .hf = hf_of_glm("glm4", "Glm4ForCausalLM"),
                                           .specialize = specialize,
                                           .read = read,
                                           .write = write,
                                           .weight_map = decoder_weights(compose_glm)});

TESSERA_MODULE_ORDER("glm4", [] {
  DecoderModules layer = glm_modules();
  layer.norms.insert(layer.norms.end(), {"post_self_attn_layernorm", "post_mlp_layernorm"});
  return decoder_order(layer);
}());

TESSERA_GGUF_NAMES("glm4", [] {
  GgufNames names = rotary_decoder_names("Glm4ForCausalLM", "glm4");
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}};
  remove_module(names, "blk.*.ffn_gate");
  set_module(names, "blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj");
  set_module(names, "blk.*.post_attention_norm", "model.layers.*.post_self_attn_layernorm");
  set_module(names, "blk.*.post_ffw_norm", "model.layers.*.post_mlp_layernorm");
  names.rotary_share = "partial_rotary_factor";
  return names;
}());

}  // namespace
}  // namespace tessera::models
