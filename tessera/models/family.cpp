// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/family.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::models {

Registry<Family>& families() {
  static Registry<Family> registry("model family");
  return registry;
}

const Family& family_of_hf(const json::Value& hf_config) {
  const json::Value* type = hf_config.find("model_type");
  TESSERA_REQUIRE(type != nullptr && type->is_string(),
                  Format,
                  hf_config.place.text() + ": no \"model_type\" that names the architecture",
                  "point at the folder of a transformers model");
  const auto names = families().names();
  TESSERA_REQUIRE(
      families().has(type->as_string()),
      Unsupported,
      fmt::format("{}: model_type \"{}\" is not built yet", type->place.text(), type->as_string()),
      text::suggestion(type->as_string(), names));
  return families().get(type->as_string());
}

namespace {

/// Lets what the user wrote override the folder, or says that it contradicts the weights.
class Merge {
 public:
  Merge(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}

  template <class T>
  void fixed(const char* key, const T& given, const T& folder) {
    const std::string path = std::string("model.") + key;
    if (!origins_.given(path) || given == folder) return;
    problems_.add(origins_.place(path),
                  path,
                  fmt::format("{} differs from the folder that model.from names", path),
                  "leave it out");
  }
  template <class T>
  void free(const char* key, const T& given, T& merged) {
    if (origins_.given(std::string("model.") + key)) merged = given;
  }

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

}  // namespace

ModelOptions merge_options(const ModelOptions& given,
                           ModelOptions out,
                           config::Problems& problems,
                           const config::Origins& origins) {
  Merge merge(problems, origins);
  merge.fixed("family", given.family, out.family);
  merge.fixed("preset", given.preset, std::optional<std::string>());
  merge.fixed("num_layers", given.num_layers, out.num_layers);
  merge.fixed("hidden_size", given.hidden_size, out.hidden_size);
  merge.fixed("num_heads", given.num_heads, out.num_heads);
  merge.fixed("num_kv_heads", given.num_kv_heads, out.num_kv_heads);
  merge.fixed("vocab_size", given.vocab_size, out.vocab_size);
  merge.fixed("max_positions", given.max_positions, out.max_positions);
  merge.fixed("ffn_hidden_size", given.ffn_hidden_size, out.ffn_hidden_size);
  merge.fixed("mlp_ratio", given.mlp_ratio, out.mlp_ratio);
  merge.fixed("qkv_bias", given.qkv_bias, out.qkv_bias);
  merge.fixed("tie_embeddings", given.tie_embeddings, out.tie_embeddings);
  merge.fixed("activation", given.activation, out.activation);
  merge.fixed("layer_norm_eps", given.layer_norm_eps, out.layer_norm_eps);
  if (origins.given("model.dropout")) {
    out.dropout = given.dropout;
    out.embedding_dropout = out.attention_dropout = out.residual_dropout = std::nullopt;
  }
  merge.free("embedding_dropout", given.embedding_dropout, out.embedding_dropout);
  merge.free("attention_dropout", given.attention_dropout, out.attention_dropout);
  merge.free("residual_dropout", given.residual_dropout, out.residual_dropout);
  merge.free("init_std", given.init_std, out.init_std);
  merge.free("label_smoothing", given.label_smoothing, out.label_smoothing);
  out.from = given.from;
  return out;
}

}  // namespace tessera::models
