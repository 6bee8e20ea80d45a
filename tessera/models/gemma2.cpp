// SPDX-License-Identifier: Apache-2.0
// Gemma 2: soft caps, windows in every second layer, norms before and after attention and MLP.
// Source: Gemma team 2024, "Gemma 2: improving open language models at a practical size".
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gemma.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("gemma2-nano", 4, 128, 4, 2, 352, 32),
      {"gemma2-2b",  26, 2304, 8,  4,  9216,  8192, 256000, {{"rms_norm_eps", 1e-6}},                          256},
      {"gemma2-9b",  42, 3584, 16, 8,  14336, 8192, 256000, {{"rms_norm_eps", 1e-6}},                          256},
      {"gemma2-27b", 46, 4608, 32, 16, 36864, 8192, 256000, {{"rms_norm_eps", 1e-6}, {"query_scalar", 144.0}}, 128},
  };
  // clang-format on
  return all;
}

struct Gemma2Options final : GemmaOptions {
  Gemma2Options() {
    score_softcap = 50.0;
    logit_softcap = 30.0;
  }

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gemma2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_gemma(fields);
  }
};

/// Every second layer has a window, starting with the first.
bool slides(std::int64_t layer) {
  return layer % 2 == 0;
}

void specialize(const Gemma2Options& options, DecoderShape& shape) {
  specialize_gemma(options, shape);
  shape.layers = windows_by_layer(options, shape.num_layers, slides);
}

const HfDecoder kHf = {.model_type = "gemma2",
                       .architecture = "Gemma2ForCausalLM",
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
                       .tied = true,
                       .has_attention_bias = true};

void read(const HfConfig& keys, Gemma2Options& out) {
  read_gemma(keys, {.score = 50.0, .logit = 30.0}, out);
  if (keys.empty("layer_types")) out.layer_types = layer_types_of(*out.num_layers, slides);
  out.sliding_window =
      !keys.given("sliding_window") ? 4096 : keys.count_or_null("sliding_window", 1e8);
}

void write(const Gemma2Options& options, json::Value& out) {
  write_gemma(options, out);
}

TESSERA_MODEL(
    "gemma2",
    DecoderFamilyOf<Gemma2Options>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER("gemma2", decoder_order(gemma_modules()));

GgufNames::Values derived_gguf(const json::Value& config) {
  return derived_gemma_gguf(config, 46, slides);
}

TESSERA_GGUF_NAMES("gemma2", [] {
  GgufNames names = gemma_gguf_names_with_windows("Gemma2ForCausalLM", "gemma2");
  names.keys.push_back({"attn_logit_softcapping", "attn_logit_softcapping", true});
  names.keys.push_back({"final_logit_softcapping", "final_logit_softcapping", true});
  names.derived = derived_gguf;
  return names;
}());

}  // namespace
}  // namespace tessera::models
