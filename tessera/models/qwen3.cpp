// SPDX-License-Identifier: Apache-2.0
// Qwen 3: the channels of each query and key head are normalized before rotation. Source: Yang et
// al. 2025, "Qwen3 technical report".
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
      {.name = "qwen3-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .head_dim = 32,
       .bytes = true},
      {.name = "qwen3-0.6b",
       .num_layers = 28,
       .hidden_size = 1024,
       .num_heads = 16,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 3072,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen3-1.7b",
       .num_layers = 28,
       .hidden_size = 2048,
       .num_heads = 16,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 6144,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen3-4b",
       .num_layers = 36,
       .hidden_size = 2560,
       .num_heads = 32,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 9728,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}},
      {.name = "qwen3-8b",
       .num_layers = 36,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 12288,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {.name = "qwen3-14b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 17408,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
      {.name = "qwen3-32b",
       .num_layers = 64,
       .hidden_size = 5120,
       .num_heads = 64,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 25600,
       .head_dim = 128,
       .vocab_size = 151936,
       .values = {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}}},
  };
  return all;
}

struct Qwen3Options final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Qwen3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields);
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Qwen3Options& options, DecoderShape& shape) {
  shape.qk_norm = QkNorm::PerHead;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

const HfDecoder kHf = {.model_type = "qwen3",
                       .architecture = "Qwen3ForCausalLM",
                       .vocab = 151936,
                       .positions = 32768,
                       .ffn = 22016,
                       .head_dim = 128,
                       .has_attention_bias = true};

void read(const HfConfig& keys, Qwen3Options& out) {
  read_layer_types(keys, out);
  read_late_windows(keys, out);
}

void write(const Qwen3Options& options, json::Value& out) {
  late_windows_to_hf(options, out);
}

TESSERA_MODEL(
    "qwen3",
    DecoderFamilyOf<Qwen3Options>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER(
    "qwen3",
    decoder_order({.attention = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}}));

TESSERA_MEGATRON_NAMES("qwen3",
                       {.kind = {.qk_norm = true},
                        .architecture = "Qwen3ForCausalLM",
                        .model_type = "qwen3"});

TESSERA_GGUF_NAMES("qwen3", [] {
  GgufNames names = rotary_decoder_names("Qwen3ForCausalLM", "qwen3");
  names.implied.emplace_back("use_sliding_window", json::Value::boolean(false));
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  require_key(names, "attention.key_length");
  set_module(names, "blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm");
  set_module(names, "blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm");
  return names;
}());

}  // namespace
}  // namespace tessera::models
