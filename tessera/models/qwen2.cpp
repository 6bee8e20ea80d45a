// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5: queries, keys and values have biases. Source: Yang et al. 2024, "Qwen2 technical
// report".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/megatron_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("qwen2-nano", 4, 128, 4, 2, 352),
      {"qwen2-0.5b",   24, 896,  14, 2, 4864,  131072, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {"qwen2-1.5b",   28, 1536, 12, 2, 8960,  131072, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {"qwen2-7b",     28, 3584, 28, 4, 18944, 131072, 152064, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {"qwen2-72b",    80, 8192, 64, 8, 29568, 131072, 152064, {{"rope_theta", 1e6}}},
      {"qwen2.5-0.5b", 24, 896,  14, 2, 4864,  32768,  151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {"qwen2.5-1.5b", 28, 1536, 12, 2, 8960,  131072, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {"qwen2.5-3b",   36, 2048, 16, 2, 11008, 32768,  151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {"qwen2.5-7b",   28, 3584, 28, 4, 18944, 131072, 152064, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {"qwen2.5-14b",  48, 5120, 40, 8, 13824, 131072, 152064, {{"rope_theta", 1e6}}},
      {"qwen2.5-32b",  64, 5120, 40, 8, 27648, 131072, 152064, {{"rope_theta", 1e6}}},
      {"qwen2.5-72b",  80, 8192, 64, 8, 29568, 131072, 152064, {{"rope_theta", 1e6}}},
  };
  // clang-format on
  return all;
}

struct Qwen2Options final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Qwen2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Qwen2Options& options, DecoderShape& shape) {
  shape.attention_bias = true;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

const HfDecoder kHf = {.model_type = "qwen2",
                       .architecture = "Qwen2ForCausalLM",
                       .hidden = 4096,
                       .vocab = 151936,
                       .positions = 32768,
                       .ffn = 22016};

void read(const HfConfig& keys, Qwen2Options& out) {
  read_layer_types(keys, out);
  read_late_windows(keys, out);
}

void write(const Qwen2Options& options, json::Value& out) {
  late_windows_to_hf(options, out);
}

TESSERA_MODEL(
    "qwen2",
    DecoderFamilyOf<Qwen2Options>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER("qwen2", decoder_order());

TESSERA_MEGATRON_NAMES("qwen2",
                       {.kind = {.qkv_bias = true},
                        .architecture = "Qwen2ForCausalLM",
                        .model_type = "qwen2"});

TESSERA_GGUF_NAMES("qwen2", [] {
  GgufNames names = rotary_decoder_names("Qwen2ForCausalLM", "qwen2");
  names.implied.emplace_back("use_sliding_window", json::Value::boolean(false));
  return names;
}());

}  // namespace
}  // namespace tessera::models
