// SPDX-License-Identifier: Apache-2.0
// ModelCenter's (BMTrain's model library) names for the modules of a family, with which its files
// are read. The family declares them. Source: OpenBMB/ModelCenter, model_center/layer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// Everything that a ModelCenter file reveals about its model, except for the values of its
/// tensors.
struct ModelCenterFile {
  const json::Value& config;  ///< ModelCenter's config.json
  /// Returns whether the file has a tensor of this name.
  std::function<bool(std::string_view)> has;
};

/// Pairs of ModelCenter's and Hugging Face's names, each of a module or of a tensor.
using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// A family in ModelCenter's files. Matrices are stored as in Hugging Face's files.
struct ModelCenterModel {
  std::string class_name;  ///< ModelCenter's class name, such as "Bert"
  /// Returns whether a file belongs to this family; at most one family may claim a file.
  bool (*is_of)(const ModelCenterFile& file) = nullptr;
  /// Keys of ModelCenter's config.json that change what a model computes, and the only accepted
  /// value of each. An absent or null key is accepted.
  std::vector<std::pair<std::string, json::Value>> computes;
  /// Returns Hugging Face's config.json of a model. Facts: vocab_size, hidden_size,
  /// ffn_hidden_size, num_layers, num_heads, max_positions (rows of the position table; 0 without
  /// one), type_vocab_size (likewise), num_kv_heads, head_dim, activation (ffn_activate_fn without
  /// "gated_"), norm_eps and tie_embeddings.
  json::Value (*config_of)(const json::Value& facts, const json::Value& config) = nullptr;
  /// The names of a model with `layers` layers.
  NamePairs (*names)(std::int64_t layers) = nullptr;
  std::string head;  ///< tensor that a tied model stores in addition to the token table
};

/// Adds the pairs of one layer's `modules` for every layer: "`theirs`.3.X" and "`ours`.3.Y".
void add_layers(NamePairs& out,
                std::int64_t layers,
                std::string_view theirs,
                std::string_view ours,
                const NamePairs& modules);
/// The pairs of an encoder with a norm after each branch (BERT, RoBERTa), with the module names of
/// transformers after `base`. In ModelCenter a layer begins with the norm that ends the previous
/// layer.
NamePairs post_norm_encoder_names(std::int64_t layers, std::string_view base);
/// ModelCenterModel::computes for such an encoder.
std::vector<std::pair<std::string, json::Value>> post_norm_encoder_keys();
/// The keys of Hugging Face's config.json that BERT and RoBERTa share.
json::Value post_norm_encoder_config(const json::Value& facts, const json::Value& config);

/// Returns whether a file contains an encoder-decoder model with biases by distance. transformers
/// has no such model gated by the exact gelu.
bool is_encoder_decoder_file(const ModelCenterFile& file);
bool gate_is_gelu(const json::Value& config);
/// Returns the pairs of such a model with `layers` layers in each stack; our names are those of
/// transformers' T5.
NamePairs encoder_decoder_names(std::int64_t layers);
/// Returns ModelCenterModel::computes for such a model.
std::vector<std::pair<std::string, json::Value>> encoder_decoder_keys();
/// Throws Error{Unsupported} if one stack has more layers than the other.
void require_equal_stacks(const json::Value& facts,
                          const json::Value& config,
                          const char* class_name);

/// Filled by the model families.
Registry<ModelCenterModel>& modelcenter_models();
#define TESSERA_MODELCENTER(family, ...)                   \
  static const bool TESSERA_UNIQUE(tessera_modelcenter_) = \
      ::tessera::models::modelcenter_models().add(family, __VA_ARGS__)

}  // namespace tessera::models
