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
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("qwen3-nano", 4, 128, 4, 2, 352, 32),
      {"qwen3-0.6b", 28, 1024, 16, 8, 3072,  40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}, 128},
      {"qwen3-1.7b", 28, 2048, 16, 8, 6144,  40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}, 128},
      {"qwen3-4b",   36, 2560, 32, 8, 9728,  40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}, {"tie_embeddings", true}}, 128},
      {"qwen3-8b",   36, 4096, 32, 8, 12288, 40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}},                           128},
      {"qwen3-14b",  40, 5120, 40, 8, 17408, 40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}},                           128},
      {"qwen3-32b",  64, 5120, 64, 8, 25600, 40960, 151936, {{"rope_theta", 1e6}, {"rms_norm_eps", 1e-6}},                           128},
  };
  // clang-format on
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
