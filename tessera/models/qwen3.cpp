// SPDX-License-Identifier: Apache-2.0
// Qwen 3: the channels of each query and key head are normalized before they turn. Source: Yang et
// al. 2025, "Qwen3 technical report".
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
       .head_dim = 128},
      {.name = "qwen3-1.7b",
       .num_layers = 28,
       .hidden_size = 2048,
       .num_heads = 16,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 6144,
       .head_dim = 128},
      {.name = "qwen3-8b",
       .num_layers = 36,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 40960,
       .num_kv_heads = 8,
       .ffn_hidden_size = 12288,
       .head_dim = 128},
  };
  return all;
}

struct Qwen3Options final : DecoderOptions {
  bool attention_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Qwen3Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the four projections of attention have biases."});
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const Qwen3Options&>(options);
  shape.attention_bias = shape.output_bias = own.attention_bias;
  shape.qk_norm = QkNorm::PerHead;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

Resolved resolve_qwen3(const Qwen3Options& options,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       config::Problems& problems,
                       const config::Origins& origins) {
  return resolve_decoder({"qwen3", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {
    .model_type = "qwen3", .vocab = 151936, .positions = 32768, .ffn = 22016, .head_dim = 128};

Qwen3Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Qwen3Options out;
  read_decoder(keys, kDefaults, out);
  read_layer_types(keys, out);
  read_late_windows(keys, out);
  out.attention_bias = keys.flag("attention_bias", false);
  return out;
}

json::Value to_hf(const Qwen3Options& options) {
  json::Value out = decoder_to_hf(options, "Qwen3ForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  late_windows_to_hf(options, out);
  return out;
}

TESSERA_MODEL("qwen3",
              FamilyOf<Qwen3Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_qwen3,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("qwen3",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.self_attn.q_norm",
                                  "model.layers.*.self_attn.k_norm",
                                  "model.layers.*.mlp.gate_proj",
                                  "model.layers.*.mlp.up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.norm",
                                  "lm_head"}});

TESSERA_MEGATRON_NAMES("qwen3",
                       {.kind = {.qk_norm = true},
                        .architecture = "Qwen3ForCausalLM",
                        .model_type = "qwen3"});

}  // namespace
}  // namespace tessera::models
