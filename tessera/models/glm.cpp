// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/glm.h"

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/module_order.h"

namespace tessera::models {

void GlmOptions::describe_glm(config::Fields& fields, const std::vector<Preset>& presets) {
  describe_shape(fields, presets, {});
  describe_attention_bias(fields,
                          "Whether the projections to queries, keys and values have biases.");
  describe_rotary_share(fields);
  describe_rest(fields);
}

void specialize_glm(DecoderShape& shape) {
  shape.output_bias = false;
  shape.rotary_interleaved = true;
}

HfDecoder hf_of_glm(const char* model_type, const char* architecture) {
  return {.model_type = model_type,
          .architecture = architecture,
          .layers = 40,
          .vocab = 151552,
          .positions = 131072,
          .ffn = 13696,
          .kv_heads = 2,
          .head_dim = 128,
          .rms_norm_eps = 1.5625e-7,
          .has_attention_bias = true};
}

void read_glm(const HfConfig& keys, GlmOptions& out) {
  out.rotary_share = partial_rotary_factor(keys, 0.5);
}

void write_glm(const GlmOptions& options, json::Value& hf_config) {
  set_partial_rotary_factor(hf_config, options.rotary_share);
}

Composition compose_glm(const ParamInfo& info) {
  const bool fused = info.name.find(".gate_up_proj.") != std::string::npos;
  return fused ? compose_fused_decoder(info) : compose_decoder(info);
}

DecoderModules glm_modules() {
  return {.mlp = {"gate_up_proj", "down_proj"}};
}

// ---- the first version of GLM-4-9B ----

namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("glm-nano", 4, 128, 4, 2, 352),
      {"glm-4-9b", 40, 4096, 32, 2, 13696, 131072, 151552, {{"rms_norm_eps", 1.5625e-7}}, 128},
  };
  return all;
}

struct FirstGlmOptions final : GlmOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<FirstGlmOptions>(*this);
  }
  void describe(config::Fields& fields) override { describe_glm(fields, presets()); }
};

void specialize(const FirstGlmOptions& /*options*/, DecoderShape& shape) {
  specialize_glm(shape);
}

void read(const HfConfig& keys, FirstGlmOptions& out) {
  read_glm(keys, out);
  out.attention_bias = keys.flag("attention_bias", true);
}

void write(const FirstGlmOptions& options, json::Value& out) {
  write_glm(options, out);
}

TESSERA_MODEL("glm",
              DecoderFamilyOf<FirstGlmOptions>{.presets = presets(),
                                               .hf = hf_of_glm("glm", "GlmForCausalLM"),
                                               .specialize = specialize,
                                               .read = read,
                                               .write = write,
                                               .weight_map = decoder_weights(compose_glm)});

TESSERA_MODULE_ORDER("glm", decoder_order(glm_modules()));

}  // namespace
}  // namespace tessera::models
