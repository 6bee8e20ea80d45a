// SPDX-License-Identifier: Apache-2.0
// Gemma 3's text model: five layers with a window for each one without; both kinds have their own
// rotary positions. Source: Gemma team 2025, "Gemma 3 technical report".
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder_family.h"
#include "tessera/models/gemma.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

/// `scaled`: positions in layers that see all tokens are divided by 8; `query_scalar` 0: the
/// number of channels of a head.
std::vector<PresetValue> published(std::int64_t window, bool scaled, double query_scalar = 0.0) {
  std::vector<PresetValue> out = {{"rms_norm_eps", 1e-6}, {"sliding_window", window}};
  if (query_scalar > 0.0) out.push_back({"query_scalar", query_scalar});
  if (scaled) {
    out.push_back({"rope_scaling", "linear"});
    out.push_back({"rope_factor", 8.0});
  }
  return out;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("gemma3-nano", 6, 128, 4, 2, 352, 32),
      {"gemma3-270m", 18, 640, 4, 1, 2048, 32768, 262144, published(512, false), 256},
      {"gemma3-1b", 26, 1152, 4, 1, 6912, 32768, 262144, published(512, false), 256},
      {"gemma3-4b", 34, 2560, 8, 4, 10240, 131072, 262208, published(1024, true), 256},
      {"gemma3-12b", 48, 3840, 16, 8, 15360, 131072, 262208, published(1024, true), 256},
      {"gemma3-27b", 62, 5376, 32, 16, 21504, 131072, 262208, published(1024, true, 168.0), 128},
  };
  return all;
}

struct Gemma3Options final : GemmaOptions {
  Gemma3Options() { rope_theta = 1e6; }
  RotaryOptions local;  ///< of the layers with a window

  [[nodiscard]] const RotaryOptions* local_rotary() const override { return &local; }

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Gemma3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    local.describe_rotary(fields, "local_");
    describe_gemma(fields);
  }
};

/// Five layers with a window, then one without.
bool slides(std::int64_t layer) {
  return (layer + 1) % 6 != 0;
}

void specialize(const Gemma3Options& options, DecoderShape& shape) {
  specialize_gemma(options, shape);
  shape.qk_norm = QkNorm::PerHead;
  shape.layers = windows_by_layer(options, shape.num_layers, slides);
  for (DecoderLayerKind& layer : shape.layers)
    layer.local_rotary = layer.window > 0;
}

const HfDecoder kHf = {.model_type = "gemma3_text",
                       .architecture = "Gemma3ForCausalLM",
                       .layers = 26,
                       .hidden = 2304,
                       .heads = 8,
                       .vocab = 262208,
                       .positions = 131072,
                       .ffn = 9216,
                       .kv_heads = 4,
                       .head_dim = 256,
                       .rope_theta = 1e6,
                       .activation_key = "hidden_activation",
                       .activation = "gelu_pytorch_tanh",
                       .tied = true,
                       .has_attention_bias = true};

/// rope_parameters of transformers 5 has one object per kind of layer; before that the layers with
/// a window had rope_local_base_freq and no scaling.
void read_both_rotaries(const HfConfig& keys, Gemma3Options& out) {
  out.local.rope_theta = keys.number("rope_local_base_freq", 10000.0, 1, 1e12);
  if (keys.empty("rope_parameters")) return;
  const HfConfig both(*keys.find("rope_parameters"));
  const auto read_kind = [&](const char* kind, RotaryOptions& rotary) {
    if (both.empty(kind)) return;
    const HfConfig rope(*both.find(kind));
    // transformers looks for both in the object around this one, or only with a scaling.
    rope.refuse("truncate", rope.flag("truncate", true), "true");
    rope.refuse("partial_rotary_factor", rope.number("partial_rotary_factor", 1, 0, 1) == 1, "1");
    read_rotary(rope, rope, *out.max_positions, rotary);
    take_length(keys, rotary, out);
  };
  read_kind(kFullAttention, out);
  read_kind(kSlidingAttention, out.local);
}

/// Every n-th layer attends to all earlier tokens.
void set_pattern(const HfConfig& keys, Gemma3Options& out) {
  if (!out.layer_types.empty()) return;
  const char* const key =
      keys.empty("sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const std::int64_t every = keys.count(key, 6, 1e6);
  out.layer_types = layer_types_of(out.num_layers.value(),
                                   [every](std::int64_t i) { return (i + 1) % every != 0; });
}

void read(const HfConfig& keys, Gemma3Options& out) {
  read_gemma(keys, {}, out);
  // transformers has the key, and does not cap these scores.
  keys.refuse("attn_logit_softcapping",
              keys.empty("attn_logit_softcapping"),
              "attn_logit_softcapping null");
  out.sliding_window =
      keys.empty("sliding_window") ? 4096 : keys.count("sliding_window", 4096, 1e8);
  read_both_rotaries(keys, out);
  set_pattern(keys, out);
}

void write(const Gemma3Options& options, json::Value& out) {
  TESSERA_REQUIRE(
      options.score_softcap == 0,
      Unsupported,
      fmt::format("model.score_softcap is {}, and Hugging Face's Gemma 3 caps no scores",
                  options.score_softcap),
      "train with model.score_softcap 0");
  write_gemma(options, out);
  out["rope_parameters"] = json::Value::object(
      {{kFullAttention, rotary_to_hf(options)}, {kSlidingAttention, rotary_to_hf(options.local)}});
  out["rope_local_base_freq"] = real_to_hf(options.local.rope_theta);
  if (options.local.rope_scaling == "dynamic")
    out["max_position_embeddings"] = json::Value::integer(options.local.rope_original_positions);
}

/// True for the vision part.
bool may_be_unused(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(std::string_view("model.").size());
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

WeightMap weight_map() {
  WeightMap out = decoder_weights();
  out.known_as = without_text_prefix;
  out.may_be_unused = may_be_unused;
  return out;
}

TESSERA_MODEL("gemma3_text",
              DecoderFamilyOf<Gemma3Options>{.presets = presets(),
                                             .hf = kHf,
                                             .specialize = specialize,
                                             .read = read,
                                             .write = write,
                                             .weight_map = weight_map(),
                                             .text_of = {"gemma3"}});

TESSERA_MODULE_ORDER("gemma3_text", [] {
  DecoderModules layer = gemma_modules();
  layer.attention.insert(layer.attention.end(), {"q_norm", "k_norm"});
  return decoder_order(layer);
}());

GgufNames::Values derived_gguf(const json::Value& config) {
  return derived_gemma_gguf(config, 62, slides);
}

TESSERA_GGUF_NAMES("gemma3", [] {
  GgufNames names = gemma_gguf_names_with_windows("Gemma3ForCausalLM", "gemma3_text");
  names.keys.push_back({"rope.freq_base_swa", "rope_local_base_freq", true, false});
  names.keys.push_back({"final_logit_softcapping", "final_logit_softcapping", true, false});
  names.implied.emplace_back("attn_logit_softcapping", json::Value());
  names.derived = derived_gguf;
  require_key(names, "rope.freq_base");
  set_module(names, "blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm");
  set_module(names, "blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm");
  names.raised.insert(names.raised.end(), {"blk.*.attn_q_norm", "blk.*.attn_k_norm"});
  return names;
}());

}  // namespace
}  // namespace tessera::models
