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
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("llama-nano", 4, 128, 4, 2, 352),
      nano("llama-mini", 6, 384, 6, 2, 1024),
      {"llama-7b",       32,  4096,  32,  0, 11008, 2048,   32000,  {{"rms_norm_eps", 1e-6}}},
      {"llama-13b",      40,  5120,  40,  0, 13824, 2048,   32000,  {{"rms_norm_eps", 1e-6}}},
      {"llama-30b",      60,  6656,  52,  0, 17920, 2048,   32000,  {{"rms_norm_eps", 1e-6}}},
      {"llama-65b",      80,  8192,  64,  0, 22016, 2048,   32000},
      {"llama2-7b",      32,  4096,  32,  0, 11008, 4096,   32000},
      {"llama2-13b",     40,  5120,  40,  0, 13824, 4096,   32000},
      {"llama2-70b",     80,  8192,  64,  8, 28672, 4096,   32000},
      {"llama3-8b",      32,  4096,  32,  8, 14336, 8192,   128256, {{"rope_theta", 500000.0}}},
      {"llama3-70b",     80,  8192,  64,  8, 28672, 8192,   128256, {{"rope_theta", 500000.0}}},
      {"llama3.1-8b",    32,  4096,  32,  8, 14336, 131072, 128256, longer(8.0)},
      {"llama3.1-70b",   80,  8192,  64,  8, 28672, 131072, 128256, longer(8.0)},
      {"llama3.1-405b",  126, 16384, 128, 8, 53248, 131072, 128256, longer(8.0)},
      {"llama3.2-1b",    16,  2048,  32,  8, 8192,  131072, 128256, longer(32.0, /*tied=*/true)},
      {"llama3.2-3b",    28,  3072,  24,  8, 8192,  131072, 128256, longer(32.0, /*tied=*/true)},
      {"llama3.3-70b",   80,  8192,  64,  8, 28672, 131072, 128256, longer(8.0)},
      {"tinyllama-1.1b", 22,  2048,  32,  4, 5632,  2048,   32000},
      {"smollm2-135m",   30,  576,   9,   3, 1536,  8192,   49152,  {{"rope_theta", 100000.0}, {"tie_embeddings", true}}},
      {"smollm2-360m",   32,  960,   15,  5, 2560,  8192,   49152,  {{"rope_theta", 100000.0}, {"tie_embeddings", true}}},
      {"smollm2-1.7b",   24,  2048,  32,  0, 8192,  8192,   49152,  {{"rope_theta", 130000.0}, {"tie_embeddings", true}}},
      {"yi-6b",          32,  4096,  32,  4, 11008, 4096,   64000,  {{"rope_theta", 5e6}}},
      {"yi-9b",          48,  4096,  32,  4, 11008, 4096,   64000,  {{"rope_theta", 5e6}}},
      {"yi-34b",         60,  7168,  56,  8, 20480, 4096,   64000,  {{"rope_theta", 5e6}}},
  };
  // clang-format on
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
  names.rotary_factors = true;
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
