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

/// What the shapes of such families have in common.
struct LayerNormShape : Sizes {
  bool tie_embeddings = true;
  double dropout = 0.0, attention_dropout = 0.0, layer_norm_eps = 1e-5, init_std = 0.02;
};

/// Sets the sizes and checks them. The MLP has 4 x hidden_size channels unless the options say
/// otherwise.
void set_decoder_sizes(const FamilyOptions& options,
                       const std::vector<Preset>& presets,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       Sizes& sizes,
                       Checks& checks);
/// Gives the options every size in place of preset and source.
void give_sizes(const Sizes& sizes, FamilyOptions& options);
/// Sets what the options and the shape have in common beside the sizes.
void set_layer_norm_shape(const LayerNormOptions& options, LayerNormShape& shape);
/// The facts of a model of these sizes. `options`: as they were given.
Resolved facts_of(const FamilyOptions& options,
                  const std::vector<Preset>& presets,
                  const Sizes& sizes,
                  Trunk trunk,
                  json::Value description);

/// Such a family with options and a shape of its own types: what it shares with the others follows.
template <class Options, class Shape>
struct LayerNormFamilyOf {
  std::string name;
  std::vector<Preset> presets;
  /// Sets and checks what the shape has of its own, after everything else; absent: nothing.
  void (*specialize)(const Options& options, Shape& shape, Checks& checks) = nullptr;
  /// A shape whose blocks can be listed, even if some of it was refused; absent: any is.
  Shape (*possible)(Shape shape) = nullptr;
  Trunk (*trunk)(const Shape& shape) = nullptr;
  /// Gives the options what is derived of the shape's own part; absent: nothing is.
  void (*complete)(const Shape& shape, Options& options) = nullptr;
  Options (*from_hf)(const json::Value& hf_config) = nullptr;
  json::Value (*to_hf)(const Options& options) = nullptr;
  WeightMap weight_map;

  [[nodiscard]] Resolved resolve(const Options& options,
                                 std::int64_t tokenizer_size,
                                 std::optional<std::int64_t> sequence_length,
                                 config::Problems& problems,
                                 const config::Origins& origins) const {
    Checks checks(problems, origins);
    Shape shape;
    set_decoder_sizes(options, presets, tokenizer_size, sequence_length, shape, checks);
    set_layer_norm_shape(options, shape);
    if (specialize != nullptr) specialize(options, shape, checks);
    Shape usable = shape;
    make_possible(usable);
    if (possible != nullptr) usable = possible(std::move(usable));
    Options whole = options;
    give_sizes(shape, whole);
    if (complete != nullptr) complete(shape, whole);
    ModelOptions described(name, std::make_unique<Options>(std::move(whole)));
    return facts_of(options, presets, shape, trunk(usable), config::write(described));
  }

  [[nodiscard]] Family family() const {
    return FamilyOf<Options>{
        .presets = presets,
        .adjustable = {{"dropout"}, {"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
        .resolve =
            [*this](const Options& options,
                    std::int64_t tokenizer_size,
                    std::optional<std::int64_t> sequence_length,
                    config::Problems& problems,
                    const config::Origins& origins) {
              return resolve(options, tokenizer_size, sequence_length, problems, origins);
            },
        .from_hf = from_hf,
        .to_hf = to_hf,
        .weight_map = weight_map}
        .family();
  }
};

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
