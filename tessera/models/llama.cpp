// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama.h"

#include <memory>
#include <utility>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/module_order.h"
#include "tessera/models/objective.h"

namespace tessera::models {

nn::Model llama(const LlamaShape& shape) {
  return with_objective(decoder_trunk(shape), "causal_lm");
}

namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "llama-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "llama-mini",
       .num_layers = 6,
       .hidden_size = 384,
       .num_heads = 6,
       .num_kv_heads = 2,
       .ffn_hidden_size = 1024,
       .bytes = true},
      {.name = "llama2-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 11008},
      {.name = "llama2-13b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 4096,
       .ffn_hidden_size = 13824},
  };
  return all;
}

struct LlamaOptions final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<LlamaOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields,
                   presets(),
                   {.positions_default =
                        "data.sequence_length, or 1024 if neither is given; 4096 for llama2"});
    describe_attention_bias(fields);
    describe_mlp_bias(fields);
    describe_rest(fields);
  }
};

const HfDecoder kHf = {.model_type = "llama",
                       .architecture = "LlamaForCausalLM",
                       .has_attention_bias = true,
                       .has_mlp_bias = true};

TESSERA_MODEL("llama", DecoderFamilyOf<LlamaOptions>{.presets = presets(), .hf = kHf});

TESSERA_MODULE_ORDER("llama", decoder_order());

TESSERA_GGUF_NAMES("llama", [] {
  GgufNames names = rotary_decoder_names("LlamaForCausalLM", "llama");
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}, {"blk.0.ffn_gate.bias", "mlp_bias"}};
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  return names;
}());

}  // namespace
}  // namespace tessera::models
