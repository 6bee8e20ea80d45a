// SPDX-License-Identifier: Apache-2.0
// Phi 3: files have queries, keys and values in one matrix, and gate and up projections in another.
// Source: Abdin et al. 2024, "Phi-3 technical report".
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
      nano("phi3-nano", 4, 128, 4, 2, 352),
      {"phi3-mini", 32, 3072, 32, 0, 8192, 4096, 32064, {{"sliding_window", 2047}}},
      {"phi3-medium", 40, 5120, 40, 10, 17920, 4096, 32064, {{"sliding_window", 2047}}},
      {"phi-4", 40, 5120, 40, 10, 17920, 16384, 100352, {{"rope_theta", 250000.0}}},
  };
  return all;
}

struct Phi3Options final : DecoderOptions {
  double residual_dropout = 0.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Phi3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_rotary_share(fields);
    fields.field("residual_dropout",
                 residual_dropout,
                 {.text = "Dropout probability on the outputs of attention and MLP.",
                  .min = 0,
                  .max = kMaxDropout});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Phi3Options& options, DecoderShape& shape) {
  shape.residual_dropout = options.residual_dropout;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
}

const HfDecoder kHf = {.model_type = "phi3",
                       .architecture = "Phi3ForCausalLM",
                       .hidden = 3072,
                       .vocab = 32064,
                       .positions = 4096,
                       .ffn = 8192,
                       .rms_norm_eps = 1e-5};

void read(const HfConfig& keys, Phi3Options& out) {
  out.sliding_window = keys.count_or_null("sliding_window", 1e8);
  out.rotary_share = partial_rotary_factor(keys, 1.0);
  // transformers documents embd_pdrop and does not apply it.
  out.residual_dropout = keys.number("resid_pdrop", 0.0, 0, kMaxDropout);
}

void write(const Phi3Options& options, json::Value& out) {
  out["sliding_window"] = window_to_hf(options);
  set_partial_rotary_factor(out, options.rotary_share);
  out["embd_pdrop"] = real_to_hf(0.0);
  out["resid_pdrop"] = real_to_hf(options.residual_dropout);
  out["original_max_position_embeddings"] = json::Value::integer(
      options.rope_length ? options.rope_original_positions : options.max_positions.value());
}

TESSERA_MODEL("phi3",
              DecoderFamilyOf<Phi3Options>{.presets = presets(),
                                           .hf = kHf,
                                           .specialize = specialize,
                                           .read = read,
                                           .write = write,
                                           .weight_map = decoder_weights(compose_fused_decoder)});

TESSERA_MODULE_ORDER("phi3",
                     decoder_order({.attention = {"o_proj", "qkv_proj"},
                                    .mlp = {"gate_up_proj", "down_proj"}}));

TESSERA_GGUF_NAMES("phi3", [] {
  GgufNames names = rotary_decoder_names("Phi3ForCausalLM", "phi3");
  names.keys.push_back({"attention.sliding_window", "sliding_window", false, false});
  for (const char* const apart : {"blk.*.attn_q", "blk.*.attn_k", "blk.*.attn_v", "blk.*.ffn_gate"})
    remove_module(names, apart);
  set_module(names, "blk.*.attn_qkv", "model.layers.*.self_attn.qkv_proj");
  set_module(names, "blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj");
  names.rotary_share = "partial_rotary_factor";
  names.long_rope = GgufNames::LongRope{};
  return names;
}());

}  // namespace
}  // namespace tessera::models
