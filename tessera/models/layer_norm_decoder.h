// SPDX-License-Identifier: Apache-2.0
// The parts that decoder families with layer norms and one key head per query head have in common:
// options, sizes, and reading of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/rotary_options.h"
#include "tessera/models/transformer_layer.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

/// Options of such a family; `dropout` applies to the outputs of attention and MLP.
struct LayerNormOptions : FamilyOptions {
  double attention_dropout = 0.0;
  std::optional<double> classifier_dropout;  ///< of families that classify tokens
  double layer_norm_eps = 1e-5;

 protected:
  /// Describes `preset` and the sizes; `preset_default`: see SizeTexts.
  void describe_decoder_sizes(config::Fields& fields,
                              const std::vector<Preset>& presets,
                              const std::string& preset_default);
  /// Describes `dropout` and `attention_dropout`.
  void describe_dropouts(config::Fields& fields);
  void describe_layer_norm_eps(config::Fields& fields);
  /// Describes the last keys: initial weights, label smoothing, `from`.
  void describe_end(config::Fields& fields);
};

/// The common part of such families' shapes.
struct LayerNormShape : Sizes {
  bool tie_embeddings = true;
  double dropout = 0.0, attention_dropout = 0.0, layer_norm_eps = 1e-5, init_std = 0.02;
  double classifier_dropout = kClassifierDropout;
};

/// Sets and checks the sizes. The MLP has 4 x hidden_size channels by default.
void set_decoder_sizes(const FamilyOptions& options,
                       const std::vector<Preset>& presets,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       Sizes& sizes,
                       Checks& checks);
/// Writes every size to the options and clears preset and source.
void give_sizes(const Sizes& sizes, FamilyOptions& options);
/// Sets what the options and the shape have in common, except for the sizes.
void set_layer_norm_shape(const LayerNormOptions& options, LayerNormShape& shape);
/// The facts of a model of these sizes. `options`: as given by the user.
Resolved facts_of(const FamilyOptions& options,
                  const std::vector<Preset>& presets,
                  const Sizes& sizes,
                  Trunk trunk,
                  json::Value description);

/// The rotary options of a family that has them, or nullptr.
template <class Options>
const RotaryOptions* rotary_of([[maybe_unused]] const Options& options) {
  if constexpr (std::is_base_of_v<RotaryOptions, Options>)
    return &options;
  else
    return nullptr;
}

/// Declares such a family with its own types of options and shape; this template adds what all such
/// families share.
template <class Options, class Shape>
struct LayerNormFamilyOf {
  std::string name;
  std::vector<Preset> presets;
  bool classifies_tokens = false;  ///< has the option classifier_dropout
  /// Sets and checks the family's own part of the shape, after everything else; nullptr: there is
  /// none.
  void (*specialize)(const Options& options, Shape& shape, Checks& checks) = nullptr;
  /// Returns a shape whose blocks can be listed, even if some of it was refused; nullptr: every
  /// shape is.
  Shape (*possible)(Shape shape) = nullptr;
  Trunk (*trunk)(const Shape& shape) = nullptr;
  /// Writes derived values of the shape's own part to the options; nullptr: there are none.
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
    const RotaryOptions* const rotary = rotary_of(options);
    set_decoder_sizes(options,
                      presets,
                      tokenizer_size,
                      positions_bound(rotary, nullptr, sequence_length),
                      shape,
                      checks);
    set_layer_norm_shape(options, shape);
    if (rotary != nullptr) set_longest_text(*rotary, nullptr, sequence_length, shape, checks);
    if (specialize != nullptr) specialize(options, shape, checks);
    Shape usable = shape;
    make_possible(usable);
    if (possible != nullptr) usable = possible(std::move(usable));
    Options whole = options;
    give_sizes(shape, whole);
    if (complete != nullptr) complete(shape, whole);
    ModelOptions described(name, std::make_unique<Options>(std::move(whole)));
    Resolved out = facts_of(options, presets, shape, trunk(usable), config::write(described));
    if (rotary != nullptr) out.max_positions = rotary->rope_length.value_or(out.max_positions);
    return out;
  }

  [[nodiscard]] Family family() const {
    std::vector<Adjustable> adjustable = {
        {"dropout"}, {"attention_dropout"}, {"init_std"}, {"label_smoothing"}};
    if (classifies_tokens) adjustable.push_back({"classifier_dropout"});
    if (rotary_of(Options()) != nullptr) adjustable.push_back({"rope_length"});
    return FamilyOf<Options>{.presets = presets,
                             .adjustable = adjustable,
                             .resolve =
                                 [*this](const Options& options,
                                         std::int64_t tokenizer_size,
                                         std::optional<std::int64_t> sequence_length,
                                         config::Problems& problems,
                                         const config::Origins& origins) {
                                   return resolve(
                                       options, tokenizer_size, sequence_length, problems, origins);
                                 },
                             .from_hf = from_hf,
                             .to_hf = to_hf,
                             .weight_map = weight_map}
        .family();
  }
};

/// Makes the block of a layer.
nn::BlockSpec block_of(std::string name, LayerSpec spec);

/// Throws Error{Unsupported} for another `model_type`, for quantized weights and for pruned heads.
void require_plain(const HfConfig& keys, const char* model_type);
/// Hugging Face's name of an activation. Throws Error{Unsupported} with the family's name if it has
/// none.
std::string hf_activation(const std::string& activation, const char* family);
/// Writes architectures, model_type and the keys that all such families name equally.
json::Value hf_begin(const LayerNormOptions& options,
                     const char* architecture,
                     const char* model_type);

/// Composes tessera's [3, heads, channels, ...] from one tensor of a file with a layer's queries,
/// keys and values head by head, [head][query | key | value][channel].
Composition qkv_by_head(std::string name, const Shape& ours);

}  // namespace tessera::models
