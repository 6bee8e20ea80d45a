// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama.h"

#include <memory>
#include <utility>
#include <vector>

#include "tessera/models/decoder_options.h"
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
  bool attention_bias = false, mlp_bias = false;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<LlamaOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields,
                   presets(),
                   {.positions_default =
                        "data.sequence_length, or 1024 if neither is given; 4096 for llama2"});
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the four projections of attention have biases."});
    fields.field(
        "mlp_bias", mlp_bias, {.text = "Whether the three projections of the MLP have biases."});
    describe_rest(fields);
  }
};

void specialize(const DecoderOptions& options, DecoderShape& shape) {
  const auto& own = dynamic_cast<const LlamaOptions&>(options);
  shape.attention_bias = shape.output_bias = own.attention_bias;
  shape.mlp_bias = own.mlp_bias;
}

Resolved resolve_llama(const LlamaOptions& options,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       config::Problems& problems,
                       const config::Origins& origins) {
  return resolve_decoder({"llama", presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

const DecoderDefaults kDefaults = {.model_type = "llama"};

LlamaOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  LlamaOptions out;
  read_decoder(keys, kDefaults, out);
  out.attention_bias = keys.flag("attention_bias", false);
  out.mlp_bias = keys.flag("mlp_bias", false);
  return out;
}

json::Value to_hf(const LlamaOptions& options) {
  json::Value out = decoder_to_hf(options, "LlamaForCausalLM", kDefaults);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  out["mlp_bias"] = json::Value::boolean(options.mlp_bias);
  return out;
}

TESSERA_MODEL("llama",
              FamilyOf<LlamaOptions>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_llama,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = decoder_weights()});

TESSERA_MODULE_ORDER("llama",
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
