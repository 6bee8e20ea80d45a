// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/modelcenter_names.h"

#include <fmt/format.h>

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
  const auto fact = [&](const char* key) { return *facts.find(key); };
  json::Value out = json::Value::object({{"vocab_size", fact("vocab_size")},
                                         {"hidden_size", fact("hidden_size")},
                                         {"intermediate_size", fact("ffn_hidden_size")},
                                         {"num_hidden_layers", fact("num_layers")},
                                         {"num_attention_heads", fact("num_heads")},
                                         {"max_position_embeddings", fact("max_positions")},
                                         {"type_vocab_size", fact("type_vocab_size")},
                                         {"hidden_act", fact("activation")},
                                         {"layer_norm_eps", fact("norm_eps")},
                                         {"tie_word_embeddings", fact("tie_embeddings")}});
  const json::Value* dropout = config.find("dropout_p");
  if (dropout != nullptr && dropout->is_number()) out["hidden_dropout_prob"] = *dropout;
  return out;
}

Registry<ModelCenterModel>& modelcenter_models() {
  static Registry<ModelCenterModel> models("family of ModelCenter's models");
  return models;
}

}  // namespace tessera::models
