// SPDX-License-Identifier: Apache-2.0
// Mistral: a decoder whose layers all attend to a sliding window. Source: Jiang et al. 2023,
// "Mistral 7B".
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "mistral-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "mistral-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 32768,
       .num_kv_heads = 8,
       .ffn_hidden_size = 14336},
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

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
}

Resolved resolve_mistral(const MistralOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins) {
  return resolve_decoder({"mistral", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {
    .model_type = "mistral", .positions = 131072, .ffn = 14336, .kv_heads = 8};

MistralOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  MistralOptions out;
  read_decoder(keys, kDefaults, out);
  read_layer_types(keys, out);
  // Absent means 4096; null means that there is none, as in files since version 0.2.
  const bool absent = !keys.given("sliding_window");
  out.sliding_window = absent ? 4096 : keys.count_or_null("sliding_window", 1e8);
  return out;
}

json::Value to_hf(const MistralOptions& options) {
  json::Value out = decoder_to_hf(options, "MistralForCausalLM", kDefaults);
  out["sliding_window"] = window_to_hf(options);
  return out;
}

TESSERA_MODEL("mistral",
              FamilyOf<MistralOptions>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_mistral,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("mistral",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.mlp.gate_proj",
                                  "model.layers.*.mlp.up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
