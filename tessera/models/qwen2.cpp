// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5: queries, keys and values have biases. Source: Yang et al. 2024, "Qwen2 technical
// report".
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder_options.h"
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
      {.name = "qwen2.5-0.5b",
       .num_layers = 24,
       .hidden_size = 896,
       .num_heads = 14,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 4864},
      {.name = "qwen2.5-1.5b",
       .num_layers = 28,
       .hidden_size = 1536,
       .num_heads = 12,
       .max_positions = 32768,
       .num_kv_heads = 2,
       .ffn_hidden_size = 8960},
      {.name = "qwen2.5-7b",
       .num_layers = 28,
       .hidden_size = 3584,
       .num_heads = 28,
       .max_positions = 32768,
       .num_kv_heads = 4,
       .ffn_hidden_size = 18944},
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

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  shape.attention_bias = true;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

Resolved resolve_qwen2(const Qwen2Options& options,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       config::Problems& problems,
                       const config::Origins& origins) {
  return resolve_decoder({"qwen2", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {
    .model_type = "qwen2", .hidden = 4096, .vocab = 151936, .positions = 32768, .ffn = 22016};

Qwen2Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Qwen2Options out;
  read_decoder(keys, kDefaults, out);
  read_layer_types(keys, out);
  read_late_windows(keys, out);
  return out;
}

json::Value to_hf(const Qwen2Options& options) {
  json::Value out = decoder_to_hf(options, "Qwen2ForCausalLM", kDefaults);
  late_windows_to_hf(options, out);
  return out;
}

TESSERA_MODEL("qwen2",
              FamilyOf<Qwen2Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_qwen2,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("qwen2",
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

TESSERA_MEGATRON_NAMES("qwen2",
                       {.kind = {.qkv_bias = true},
                        .architecture = "Qwen2ForCausalLM",
                        .model_type = "qwen2"});

}  // namespace
}  // namespace tessera::models
