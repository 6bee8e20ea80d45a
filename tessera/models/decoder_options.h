// SPDX-License-Identifier: Apache-2.0
// The options that families of decoder.h share, and their conversion to a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/layer_types.h"
#include "tessera/models/moe_options.h"
#include "tessera/models/rotary_options.h"

namespace tessera::models {

struct DecoderOptions : FamilyOptions, RotaryOptions {
  DecoderOptions() { tie_embeddings = false; }
  std::optional<std::int64_t> head_dim;
  std::string activation = "silu";
  double attention_dropout = 0.0;
  std::optional<double> classifier_dropout;
  double rms_norm_eps = 1e-5;
  // A family describes those of the following options that it has.
  bool attention_bias = false;  ///< biases of the four projections of attention
  bool mlp_bias = false;        ///< biases of the three projections of the MLP
  double rotary_share = 1.0;    ///< share of a head's channels that are rotated
  std::int64_t sliding_window = 0;
  std::vector<std::string> layer_types;  ///< empty: the family's rule
  MoeOptions moe;                        ///< experts; every family has these keys
  /// The rotary positions of layers with DecoderLayerKind::local_rotary; nullptr: the family has
  /// none. Their rope_length is that of the others.
  [[nodiscard]] virtual const RotaryOptions* local_rotary() const { return nullptr; }

 protected:
  /// Documentation texts of the sizes that differ between families; the defaults are LLaMA's.
  struct Texts {
    std::string positions_default = "of the preset, data.sequence_length, or 1024";
    std::string ffn_default = "of the preset, or 8/3 x hidden_size rounded up to a multiple of 256";
  };
  /// Describes the sizes and rotary positions.
  void describe_shape(config::Fields& fields,
                      const std::vector<Preset>& presets,
                      const Texts& texts);
  /// `text` replaces the documentation if the key is not about all four projections.
  void describe_attention_bias(config::Fields& fields, std::string text = "");
  void describe_mlp_bias(config::Fields& fields);
  void describe_rotary_share(config::Fields& fields);
  /// Describes `no_rope_interval` of a family whose layers have rotary positions by turns.
  static void describe_no_rope_interval(config::Fields& fields, std::int64_t& no_rope_interval);
  /// Describes a factor of something, which is above 0.
  static void describe_factor(config::Fields& fields,
                              const char* key,
                              double& value,
                              const char* text);
  /// Describes `sliding_window` and `layer_types`.
  void describe_windows(config::Fields& fields);
  /// Describes everything else; it is the last call in a family's describe().
  void describe_rest(config::Fields& fields);
};

/// The name, the presets and the options of one family of decoders.
struct DecoderFamily {
  std::string name;
  std::vector<Preset> presets;
  /// Sets values without a common option, after everything else is set.
  std::function<void(DecoderShape& shape)> specialize;
  /// Reports options that contradict each other; may be empty.
  std::function<void(const DecoderShape& shape, Checks& checks)> check = {};
};
/// Family::resolve for such a family.
Resolved resolve_decoder(const DecoderFamily& family,
                         const DecoderOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins);
/// Returns whether the layer of this number has a window.
using LayerRule = std::function<bool(std::int64_t layer)>;
/// The layer_types of `layers` layers.
std::vector<std::string> layer_types_of(std::int64_t layers, const LayerRule& slides);
/// One kind per layer: with the window if layer_types says so or, if it is empty, if `slides` does
/// for the layer's number.
std::vector<DecoderLayerKind> windows_by_layer(const DecoderOptions& options,
                                               std::int64_t layers,
                                               const LayerRule& slides);

}  // namespace tessera::models
