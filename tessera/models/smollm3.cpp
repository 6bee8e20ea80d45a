// SPDX-License-Identifier: Apache-2.0
// SmolLM 3: every fourth layer has no positions. Source: Bakouch et al. 2025, "SmolLM3: smol,
// multilingual, long-context reasoner"; Yang et al. 2025, "RoPE to NoPE and back again".
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
      nano("smollm3-nano", 4, 128, 4, 2, 352),
      {"smollm3-3b", 36, 2048, 16, 4, 11008, 65536, 128256, {{"rope_theta", 5e6}, {"rms_norm_eps", 1e-6}}},
  };
  // clang-format on
  return all;
}

struct Smollm3Options final : DecoderOptions {
  Smollm3Options() {
    tie_embeddings = true;
    rope_theta = 2e6;
  }
  std::int64_t no_rope_interval = 4;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Smollm3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_no_rope_interval(fields, no_rope_interval);
    describe_attention_bias(fields);
    describe_mlp_bias(fields);
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Smollm3Options& options, DecoderShape& shape) {
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
  for (std::size_t i = 0; options.no_rope_interval > 0 && i < shape.layers.size(); ++i)
    shape.layers[i].rotary = (i + 1) % static_cast<std::size_t>(options.no_rope_interval) != 0;
}

const HfDecoder kHf = {.model_type = "smollm3",
                       .architecture = "SmolLM3ForCausalLM",
                       .layers = 36,
                       .hidden = 2048,
                       .heads = 16,
                       .vocab = 128256,
                       .positions = 32768,
                       .kv_heads = 4,
                       .rope_theta = 2e6,
                       .tied = true,
                       .has_attention_bias = true,
                       .has_mlp_bias = true};

void read(const HfConfig& keys, Smollm3Options& out) {
  read_layer_types(keys, out);
  read_late_windows(keys, out);
  const std::optional<std::int64_t> every = read_no_rope_interval(keys);
  keys.refuse("no_rope_layers", every.has_value(), "a list in which every n-th layer is 0");
  out.no_rope_interval = *every;
}

void write(const Smollm3Options& options, json::Value& out) {
  late_windows_to_hf(options, out);
  std::vector<bool> rotary;
  for (std::int64_t i = 1; i <= *options.num_layers; ++i)
    rotary.push_back(options.no_rope_interval == 0 || i % options.no_rope_interval != 0);
  write_no_rope(rotary, options.no_rope_interval, out);
}

TESSERA_MODEL(
    "smollm3",
    DecoderFamilyOf<Smollm3Options>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER("smollm3", decoder_order());

/// llama.cpp treats every fourth layer as one without positions.
GgufNames::Values derived_gguf(const json::Value& config) {
  json::Value turns = json::Value::array();
  for (std::int64_t i = 1; i <= HfConfig(config).count("num_hidden_layers", 1, 1e4); ++i)
    turns.push_back(json::Value::integer(i % 4 != 0 ? 1 : 0));
  return {{"no_rope_layers", std::move(turns)}};
}

TESSERA_GGUF_NAMES("smollm3", [] {
  GgufNames names = rotary_decoder_names("SmolLM3ForCausalLM", "smollm3");
  names.implied.emplace_back("use_sliding_window", json::Value::boolean(false));
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  names.implied.emplace_back("mlp_bias", json::Value::boolean(false));
  names.derived = derived_gguf;
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  require_key(names, "rope.freq_base");
  return names;
}());

}  // namespace
}  // namespace tessera::models
