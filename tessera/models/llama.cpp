// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama.h"

#include <memory>
#include <utility>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/megatron_names.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"
#include "tessera/models/objective.h"

namespace tessera::models {

nn::Model llama(const LlamaShape& shape) {
  return with_objective(decoder_trunk(shape), "causal_lm");
}

namespace {

/// Llama 3.1 and later: rotary positions scaled for sequences longer than 8192 tokens.
std::vector<PresetValue> longer(double factor, bool tied = false) {
  return {{"rope_theta", 500000.0},
          {"rope_scaling", "llama3"},
          {"rope_factor", factor},
          {"rope_low_freq_factor", 1.0},
          {"rope_high_freq_factor", 4.0},
          {"rope_original_positions", 8192},
          {"tie_embeddings", tied}};
}

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
      {.name = "llama-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 2048,
       .ffn_hidden_size = 11008,
       .vocab_size = 32000,
       .values = {{"rms_norm_eps", 1e-6}}},
      {.name = "llama-13b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 2048,
       .ffn_hidden_size = 13824,
       .vocab_size = 32000,
       .values = {{"rms_norm_eps", 1e-6}}},
      {.name = "llama-30b",
       .num_layers = 60,
       .hidden_size = 6656,
       .num_heads = 52,
       .max_positions = 2048,
       .ffn_hidden_size = 17920,
       .vocab_size = 32000,
       .values = {{"rms_norm_eps", 1e-6}}},
      {.name = "llama-65b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 2048,
       .ffn_hidden_size = 22016,
       .vocab_size = 32000},
      {.name = "llama2-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 11008,
       .vocab_size = 32000},
      {.name = "llama2-13b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 4096,
       .ffn_hidden_size = 13824,
       .vocab_size = 32000},
      {.name = "llama2-70b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 4096,
       .num_kv_heads = 8,
       .ffn_hidden_size = 28672,
       .vocab_size = 32000},
      {.name = "llama3-8b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 8192,
       .num_kv_heads = 8,
       .ffn_hidden_size = 14336,
       .vocab_size = 128256,
       .values = {{"rope_theta", 500000.0}}},
      {.name = "llama3-70b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 8192,
       .num_kv_heads = 8,
       .ffn_hidden_size = 28672,
       .vocab_size = 128256,
       .values = {{"rope_theta", 500000.0}}},
      {.name = "llama3.1-8b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 14336,
       .vocab_size = 128256,
       .values = longer(8.0)},
      {.name = "llama3.1-70b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 28672,
       .vocab_size = 128256,
       .values = longer(8.0)},
      {.name = "llama3.1-405b",
       .num_layers = 126,
       .hidden_size = 16384,
       .num_heads = 128,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 53248,
       .vocab_size = 128256,
       .values = longer(8.0)},
      {.name = "llama3.2-1b",
       .num_layers = 16,
       .hidden_size = 2048,
       .num_heads = 32,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 8192,
       .vocab_size = 128256,
       .values = longer(32.0, /*tied=*/true)},
      {.name = "llama3.2-3b",
       .num_layers = 28,
       .hidden_size = 3072,
       .num_heads = 24,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 8192,
       .vocab_size = 128256,
       .values = longer(32.0, /*tied=*/true)},
      {.name = "llama3.3-70b",
       .num_layers = 80,
       .hidden_size = 8192,
       .num_heads = 64,
       .max_positions = 131072,
       .num_kv_heads = 8,
       .ffn_hidden_size = 28672,
       .vocab_size = 128256,
       .values = longer(8.0)},
      {.name = "tinyllama-1.1b",
       .num_layers = 22,
       .hidden_size = 2048,
       .num_heads = 32,
       .max_positions = 2048,
       .num_kv_heads = 4,
       .ffn_hidden_size = 5632,
       .vocab_size = 32000},
      {.name = "smollm2-135m",
       .num_layers = 30,
       .hidden_size = 576,
       .num_heads = 9,
       .max_positions = 8192,
       .num_kv_heads = 3,
       .ffn_hidden_size = 1536,
       .vocab_size = 49152,
       .values = {{"rope_theta", 100000.0}, {"tie_embeddings", true}}},
      {.name = "smollm2-360m",
       .num_layers = 32,
       .hidden_size = 960,
       .num_heads = 15,
       .max_positions = 8192,
       .num_kv_heads = 5,
       .ffn_hidden_size = 2560,
       .vocab_size = 49152,
       .values = {{"rope_theta", 100000.0}, {"tie_embeddings", true}}},
      {.name = "smollm2-1.7b",
       .num_layers = 24,
       .hidden_size = 2048,
       .num_heads = 32,
       .max_positions = 8192,
       .ffn_hidden_size = 8192,
       .vocab_size = 49152,
       .values = {{"rope_theta", 130000.0}, {"tie_embeddings", true}}},
      {.name = "yi-6b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .num_kv_heads = 4,
       .ffn_hidden_size = 11008,
       .vocab_size = 64000,
       .values = {{"rope_theta", 5e6}}},
      {.name = "yi-9b",
       .num_layers = 48,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .num_kv_heads = 4,
       .ffn_hidden_size = 11008,
       .vocab_size = 64000,
       .values = {{"rope_theta", 5e6}}},
      {.name = "yi-34b",
       .num_layers = 60,
       .hidden_size = 7168,
       .num_heads = 56,
       .max_positions = 4096,
       .num_kv_heads = 8,
       .ffn_hidden_size = 20480,
       .vocab_size = 64000,
       .values = {{"rope_theta", 5e6}}},
  };
  return all;
}

struct LlamaOptions final : DecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<LlamaOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
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

TESSERA_MODELCENTER(
    "llama",
    {.class_name = "Llama",
     .is_of =
         [](const ModelCenterFile& file) {
           const json::Value* positions = file.config.find("pos_bias_type");
           return file.has("encoder.layers.0.ffn.ffn.w_in.w_0.weight") && positions != nullptr &&
                  positions->is_string() && positions->as_string() == "rotary";
         },
     .computes = {{"post_layer_norm", json::Value::boolean(false)},
                  {"norm_bias", json::Value::boolean(false)},
                  {"att_bias", json::Value::boolean(false)},
                  {"ffn_bias", json::Value::boolean(false)},
                  {"attn_scale", json::Value::boolean(true)},
                  {"length_scale", json::Value::boolean(false)}},
     .config_of =
         [](const json::Value& facts, const json::Value& /*config*/) {
           json::Value out = json::Value::object({{"model_type", json::Value::string("llama")}});
           for (const auto& [fact, key] : NamePairs{{"vocab_size", "vocab_size"},
                                                    {"hidden_size", "hidden_size"},
                                                    {"ffn_hidden_size", "intermediate_size"},
                                                    {"num_layers", "num_hidden_layers"},
                                                    {"num_heads", "num_attention_heads"},
                                                    {"num_kv_heads", "num_key_value_heads"},
                                                    {"head_dim", "head_dim"},
                                                    {"activation", "hidden_act"},
                                                    {"norm_eps", "rms_norm_eps"},
                                                    {"tie_embeddings", "tie_word_embeddings"}})
             out[key] = *facts.find(fact);
           return out;
         },
     .names =
         [](std::int64_t layers) {
           NamePairs out = {{"input_embedding", "model.embed_tokens"},
                            {"encoder.output_layernorm", "model.norm"},
                            {"output_projection", "lm_head"}};
           add_layers(out,
                      layers,
                      "encoder.layers",
                      "model.layers",
                      {{"self_att.layernorm_before_attention", "input_layernorm"},
                       {"self_att.self_attention.project_q", "self_attn.q_proj"},
                       {"self_att.self_attention.project_k", "self_attn.k_proj"},
                       {"self_att.self_attention.project_v", "self_attn.v_proj"},
                       {"self_att.self_attention.attention_out", "self_attn.o_proj"},
                       {"ffn.layernorm_before_ffn", "post_attention_layernorm"},
                       {"ffn.ffn.w_in.w_0", "mlp.gate_proj"},
                       {"ffn.ffn.w_in.w_1", "mlp.up_proj"},
                       {"ffn.ffn.w_out", "mlp.down_proj"}});
           return out;
         },
     .head = "output_projection.weight"});

TESSERA_MEGATRON_NAMES("llama", {.architecture = "LlamaForCausalLM", .model_type = "llama"});

}  // namespace
}  // namespace tessera::models
