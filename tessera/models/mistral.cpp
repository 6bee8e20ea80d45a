// SPDX-License-Identifier: Apache-2.0
// Mistral: a decoder whose layers all attend to a sliding window. Source: Jiang et al. 2023,
// "Mistral 7B".
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
      nano("mistral-nano", 4, 128, 4, 2, 352),
      {"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32000, {{"sliding_window", 4096}}},
      {"mistral-7b-v0.2", 32, 4096, 32, 8, 14336, 32768, 32000, {{"rope_theta", 1e6}}},
      {"mistral-7b-v0.3", 32, 4096, 32, 8, 14336, 32768, 32768, {{"rope_theta", 1e6}}},
      {"mistral-nemo-12b", 40, 5120, 32, 8, 14336, 131072, 131072, {{"rope_theta", 1e6}}, 128},
      {"mistral-small-24b", 40, 5120, 32, 8, 32768, 32768, 131072, {{"rope_theta", 1e8}}, 128},
  };
  return all;
}

struct MistralOptions final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<MistralOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const MistralOptions& options, DecoderShape& shape) {
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
}

const HfDecoder kHf = {.model_type = "mistral",
                       .architecture = "MistralForCausalLM",
                       .positions = 131072,
                       .ffn = 14336,
                       .kv_heads = 8};

void read(const HfConfig& keys, MistralOptions& out) {
  read_layer_types(keys, out);
  // Absent means 4096; null means no window, as in files since version 0.2.
  const bool absent = !keys.given("sliding_window");
  out.sliding_window = absent ? 4096 : keys.count_or_null("sliding_window", 1e8);
}

void write(const MistralOptions& options, json::Value& out) {
  out["sliding_window"] = window_to_hf(options);
}

TESSERA_MODEL(
    "mistral",
    DecoderFamilyOf<MistralOptions>{
        .presets = presets(), .hf = kHf, .specialize = specialize, .read = read, .write = write});

TESSERA_MODULE_ORDER("mistral", decoder_order());

// llama.cpp has no window for this family; a file of llama with a window is read as this one.
TESSERA_GGUF_NAMES("mistral", [] {
  GgufNames names = rotary_decoder_names("MistralForCausalLM", "mistral");
  names.keys.push_back({kGgufWindow, "sliding_window", /*real=*/false, /*required=*/false});
  names.implied.emplace_back("layer_types", json::Value());
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  names.stored_as = "llama";
  names.rotary_factors = true;
  return names;
}());

}  // namespace
}  // namespace tessera::models
