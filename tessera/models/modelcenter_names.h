// SPDX-License-Identifier: Apache-2.0
// The names that ModelCenter (BMTrain's model library) gives to the modules of a family, by which
// its files are read. The family declares them.  Source: OpenBMB/ModelCenter, model_center/layer.
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

/// What a file of ModelCenter says of its model, besides the values of its tensors.
struct ModelCenterFile {
  const json::Value& config;                  ///< ModelCenter's config.json
  std::function<bool(std::string_view)> has;  ///< whether the file holds a tensor of this name
};

/// Pairs of names: ModelCenter's and Hugging Face's, each of a module or of a tensor.
using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// A family in ModelCenter's files. Matrices are stored as Hugging Face stores them.
struct ModelCenterModel {
  std::string class_name;  ///< "Bert", ModelCenter's own
  /// Whether a file is of this family; at most one family may claim a file.
  bool (*is_of)(const ModelCenterFile& file) = nullptr;
  /// Keys of ModelCenter's config.json that change what a model computes -> the value with which
  /// the family computes. A key that is absent or null passes.
  std::vector<std::pair<std::string, json::Value>> computes;
  /// Hugging Face's config.json of a model. Facts: vocab_size, hidden_size, ffn_hidden_size,
  /// num_layers, num_heads, max_positions (rows of the position table; 0 without one),
  /// type_vocab_size (likewise), num_kv_heads, head_dim, activation (ffn_activate_fn without
  /// "gated_"), norm_eps and tie_embeddings.
  json::Value (*config_of)(const json::Value& facts, const json::Value& config) = nullptr;
  /// The names of a model with so many layers.
  NamePairs (*names)(std::int64_t layers) = nullptr;
  std::string head;  ///< ModelCenter's tensor that a tied model stores beside the token table
};

/// The pairs of `modules`, of one layer, for every layer: "`theirs`.3.X" and "`ours`.3.Y".
void add_layers(NamePairs& out,
                std::int64_t layers,
                std::string_view theirs,
                std::string_view ours,
                const NamePairs& modules);
/// The pairs of an encoder with a norm behind each branch (BERT, RoBERTa), whose modules have the
/// names that transformers gives them behind `base`. In ModelCenter a layer begins with the norm
/// that ends the layer before it.
NamePairs post_norm_encoder_names(std::int64_t layers, std::string_view base);
/// ModelCenterModel::computes of such an encoder.
std::vector<std::pair<std::string, json::Value>> post_norm_encoder_keys();
/// The keys of Hugging Face's config.json that BERT and RoBERTa share.
json::Value post_norm_encoder_config(const json::Value& facts, const json::Value& config);

/// Whether a file is of an encoder and a decoder with biases by distance. One gated by gelu, which
/// is by the error function, is none that transformers has.
bool is_encoder_decoder_file(const ModelCenterFile& file);
bool gate_is_gelu(const json::Value& config);
/// The pairs of such a model with so many layers in each stack, ours as transformers' T5 has them.
NamePairs encoder_decoder_names(std::int64_t layers);
/// ModelCenterModel::computes of it.
std::vector<std::pair<std::string, json::Value>> encoder_decoder_keys();
/// Error{Unsupported} where one stack has more layers than the other.
void require_equal_stacks(const json::Value& facts,
                          const json::Value& config,
                          const char* class_name);

/// Filled by the families of models.
Registry<ModelCenterModel>& modelcenter_models();
#define TESSERA_MODELCENTER(family, ...)             \
  static const bool tessera_modelcenter_registered = \
      ::tessera::models::modelcenter_models().add(family, __VA_ARGS__)

}  // namespace tessera::models
