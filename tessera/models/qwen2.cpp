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
  static const std::vector<Preset> all = {
      {.name = "qwen2-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "qwen2-0.5b",
       .num_layers = 24,
       .hidden_size = 896,
       .num_heads = 14,
       .max_positions = 131072,
       .num_kv_heads = 2,
       .ffn_hidden_size = 4864,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen2-1.5b",
       .num_layers = 28,
       .hidden_size = 1536,
       .num_heads = 12,
       .max_positions = 131072,
       .num_kv_heads = 2,
       .ffn_hidden_size = 8960,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen2-7b",
       .num_layers = 28,
       .hidden_size = 3584,
       .num_heads = 28,
       .max_positions = 131072,
       .num_kv_heads = 4,
       .ffn_hidden_size = 18944,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {.name = "qwen2-72b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 29568,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}}},
      {.name = "qwen2.5-0.5b",
       .num_layers = 24,
       .hidden_size = 896,
       .num_heads = 14,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 4864,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen2.5-1.5b",
       .num_layers = 28,
       .hidden_size = 1536,
       .num_heads = 12,
       .max_positions = 131072,
       .num_kv_heads = 2,
       .ffn_hidden_size = 8960,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen2.5-3b",
       .num_layers = 36,
       .hidden_size = 2048,
       .num_heads = 16,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 11008,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen2.5-7b",
       .num_layers = 28,
       .hidden_size = 3584,
       .num_heads = 28,
       .max_positions = 131072,
       .num_kv_heads = 4,
       .ffn_hidden_size = 18944,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {.name = "qwen2.5-14b",
       .num_layers = 48,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 13824,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}}},
      {.name = "qwen2.5-32b",
       .num_layers = 64,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 27648,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}}},
      {.name = "qwen2.5-72b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 29568,
       .vocab_size = 152064,
       .values = {{"rope_theta", 1e6}}},
  };
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
