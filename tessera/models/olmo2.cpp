// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms behind attention and MLP alone, and over all channels of queries and of keys.
// Source: OLMo team 2024, "2 OLMo 2 Furious".
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
      {.name = "olmo2-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "olmo2-1b",
       .num_layers = 16,
       .hidden_size = 2048,
       .num_heads = 16,
       .max_positions = 4096,
       .ffn_hidden_size = 8192},
      {.name = "olmo2-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 11008},
  };
  return all;
}

struct Olmo2Options final : DecoderOptions {
  bool attention_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Olmo2Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the four projections of attention have biases."});
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const Olmo2Options&>(options);
  shape.attention_bias = shape.output_bias = own.attention_bias;
  shape.qk_norm = QkNorm::AllHeads;
  shape.norm_before_attention.clear();
  shape.norm_after_attention = "post_attention_layernorm";
  shape.norm_before_mlp.clear();
  shape.norm_after_mlp = "post_feedforward_layernorm";
}

Resolved resolve_olmo2(const Olmo2Options& options,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       config::Problems& problems,
                       const config::Origins& origins) {
  return resolve_decoder({"olmo2", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {.model_type = "olmo2", .vocab = 50304, .rms_norm_eps = 1e-5};

Olmo2Options from_hf(const json::Value& config) {
  const HfConfig keys(config);
  Olmo2Options out;
  read_decoder(keys, kDefaults, out);
  out.attention_bias = keys.flag("attention_bias", false);
  return out;
}

json::Value to_hf(const Olmo2Options& options) {
  json::Value out = decoder_to_hf(options, "Olmo2ForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  return out;
}

TESSERA_MODEL("olmo2",
              FamilyOf<Olmo2Options>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_olmo2,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("olmo2",
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
                                  "model.layers.*.post_attention_layernorm",
                                  "model.layers.*.post_feedforward_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
