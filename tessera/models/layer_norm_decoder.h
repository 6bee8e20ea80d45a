// SPDX-License-Identifier: Apache-2.0
// What families of decoders with layer norms and as many heads of keys as of queries share:
// options, sizes, and reading of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/transformer_layer.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

/// Options of such a family; `dropout` is on the outputs of attention and MLP.
struct LayerNormOptions : FamilyOptions {
  double attention_dropout = 0.0;
  double layer_norm_eps = 1e-5;

 protected:
  /// `preset` and the sizes; `preset_default`: see SizeTexts.
  void describe_decoder_sizes(config::Fields& fields,
                              const std::vector<Preset>& presets,
                              const std::string& preset_default);
  /// `dropout` and `attention_dropout`.
  void describe_dropouts(config::Fields& fields);
  void describe_layer_norm_eps(config::Fields& fields);
  /// Keys that come last: initial weights, label smoothing, `from`.
  void describe_end(config::Fields& fields);
};

/// The keys that such a family has beside `model.from`.
std::vector<Adjustable> adjustable_of_decoder();

/// Sets the sizes and checks them; returns the preset that counts, or nullptr where sizes alone are
/// given. The MLP has 4 x hidden_size channels unless the options say otherwise.
const Preset* set_decoder_sizes(const FamilyOptions& options,
                                const std::vector<Preset>& presets,
                                std::int64_t tokenizer_size,
                                std::optional<std::int64_t> sequence_length,
                                Sizes& sizes,
                                Checks& checks);
/// Gives the options every size in place of preset and source.
void give_sizes(const Sizes& sizes, FamilyOptions& options);
/// The facts of a model of these sizes. `options`: as they were given.
Resolved facts_of(const FamilyOptions& options,
                  const std::vector<Preset>& presets,
                  const Sizes& sizes,
                  Trunk trunk,
                  json::Value description);

/// The block of a layer.
nn::BlockSpec block_of(std::string name, LayerSpec spec);

/// Error{Unsupported} for another `model_type`, and for weights that are no plain floats of all
/// heads.
void require_plain(const HfConfig& keys, const char* model_type);
/// An activation under Hugging Face's name. Error{Unsupported} naming the family for one without.
std::string hf_activation(const std::string& activation, const char* family);
/// architectures, model_type and the keys that all such families write under one name.
json::Value hf_begin(const LayerNormOptions& options,
                     const char* architecture,
                     const char* model_type);

/// Queries, keys and values of a layer, which a file stores in one tensor head by head,
/// [head][query | key | value][channel], as our [3, heads, channels, ...].
Composition qkv_by_head(std::string name, const Shape& ours);

}  // namespace tessera::models
