// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/modelcenter_names.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/encoder.h"

namespace tessera::models {

void add_layers(NamePairs& out,
                std::int64_t layers,
                std::string_view theirs,
                std::string_view ours,
                const NamePairs& modules) {
  for (std::int64_t i = 0; i < layers; ++i) {
    for (const auto& [module, known_as] : modules)
      out.emplace_back(fmt::format("{}.{}.{}", theirs, i, module),
                       fmt::format("{}.{}.{}", ours, i, known_as));
  }
}

NamePairs post_norm_encoder_names(std::int64_t layers, std::string_view base) {
  const auto in = [&](std::string_view module) { return fmt::format("{}{}", base, module); };
  NamePairs out = {{"input_embedding", in("embeddings.word_embeddings")},
                   {"position_embedding", in("embeddings.position_embeddings")},
                   {"token_type_embedding", in("embeddings.token_type_embeddings")},
                   {"pooler.dense", in("pooler.dense")}};
  add_layers(out,
             layers,
             "encoder.layers",
             in("encoder.layer"),
             {{"self_att.self_attention.project_q", "attention.self.query"},
              {"self_att.self_attention.project_k", "attention.self.key"},
              {"self_att.self_attention.project_v", "attention.self.value"},
              {"self_att.self_attention.attention_out", "attention.output.dense"},
              {"ffn.layernorm_before_ffn", "attention.output.LayerNorm"},
              {"ffn.ffn.w_in.w", "intermediate.dense"},
              {"ffn.ffn.w_out", "output.dense"}});
  for (std::int64_t i = 0; i <= layers; ++i) {
    out.emplace_back(i == layers
                         ? "encoder.output_layernorm"
                         : fmt::format("encoder.layers.{}.self_att.layernorm_before_attention", i),
                     i == 0 ? in("embeddings.LayerNorm")
                            : in(fmt::format("encoder.layer.{}.output.LayerNorm", i - 1)));
  }
  return out;
}

std::vector<std::pair<std::string, json::Value>> post_norm_encoder_keys() {
  return {{"post_layer_norm", json::Value::boolean(true)},
          {"norm_bias", json::Value::boolean(true)},
          {"att_bias", json::Value::boolean(true)},
          {"ffn_bias", json::Value::boolean(true)},
          {"attn_scale", json::Value::boolean(true)},
          {"length_scale", json::Value::boolean(false)},
          {"pos_bias_type", json::Value::string("none")}};
}

json::Value post_norm_encoder_config(const json::Value& facts, const json::Value& config) {
  json::Value out = encoder_config_of(facts);
  const json::Value* dropout = config.find("dropout_p");
  if (dropout != nullptr && dropout->is_number()) out["hidden_dropout_prob"] = *dropout;
  return out;
}

namespace {

/// The modules of an attention block of ModelCenter and of transformers.
void add_attention(NamePairs& out,
                   const std::string& theirs,
                   const std::string& layer,
                   const char* ours) {
  out.emplace_back(theirs + ".layernorm_before_attention", layer + ".layer_norm");
  for (const char* which : {"q", "k", "v"})
    out.emplace_back(fmt::format("{}.self_attention.project_{}", theirs, which),
                     fmt::format("{}.{}.{}", layer, ours, which));
  out.emplace_back(theirs + ".self_attention.attention_out", fmt::format("{}.{}.o", layer, ours));
}

}  // namespace

NamePairs encoder_decoder_names(std::int64_t layers) {
  NamePairs out = {{"input_embedding", "shared"}, {"output_projection", "lm_head"}};
  for (const bool writes : {false, true}) {
    const std::string stack = writes ? "decoder" : "encoder", mlp = writes ? "layer.2" : "layer.1";
    out.emplace_back(stack + ".output_layernorm", stack + ".final_layer_norm");
    out.emplace_back(writes ? "position_bias_dec.relative_attention_bias"
                            : "position_bias_enc.relative_attention_bias",
                     stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    NamePairs modules = {{"ffn.layernorm_before_ffn", mlp + ".layer_norm"},
                         {"ffn.ffn.w_in.w", mlp + ".DenseReluDense.wi"},
                         {"ffn.ffn.w_in.w_0", mlp + ".DenseReluDense.wi_0"},
                         {"ffn.ffn.w_in.w_1", mlp + ".DenseReluDense.wi_1"},
                         {"ffn.ffn.w_out", mlp + ".DenseReluDense.wo"}};
    add_attention(modules, "self_att", "layer.0", "SelfAttention");
    if (writes) add_attention(modules, "cross_att", "layer.1", "EncDecAttention");
    add_layers(out, layers, stack + ".layers", stack + ".block", modules);
  }
  return out;
}

std::vector<std::pair<std::string, json::Value>> encoder_decoder_keys() {
  std::vector<std::pair<std::string, json::Value>> out;
  for (const char* key : {"post_layer_norm",
                          "norm_bias",
                          "att_bias",
                          "ffn_bias",
                          "proj_bias",
                          "attn_scale",
                          "length_scale",
                          "tied"})
    out.emplace_back(key, json::Value::boolean(false));
  return out;
}

bool is_encoder_decoder_file(const ModelCenterFile& file) {
  return file.has("decoder.layers.0.cross_att.self_attention.project_q.weight") &&
         file.has("position_bias_enc.relative_attention_bias");
}

bool gate_is_gelu(const json::Value& config) {
  const json::Value* given = config.find("ffn_activate_fn");
  return given != nullptr && given->is_string() && given->as_string() == "gated_gelu";
}

void require_equal_stacks(const json::Value& facts,
                          const json::Value& config,
                          const char* class_name) {
  const auto layers_of = [&](const char* key) {
    const json::Value* given = config.find(key);
    return given == nullptr || given->is_null() ? facts.find("num_layers")->dump() : given->dump();
  };
  TESSERA_REQUIRE(layers_of("num_decoder_layers") == layers_of("num_encoder_layers"),
                  Unsupported,
                  fmt::format("config.json: {} layers read and {} write",
                              layers_of("num_encoder_layers"),
                              layers_of("num_decoder_layers")),
                  fmt::format("a {} of ModelCenter is read with as many of both", class_name));
}

Registry<ModelCenterModel>& modelcenter_models() {
  static Registry<ModelCenterModel> models("family of ModelCenter's models");
  return models;
}

}  // namespace tessera::models
