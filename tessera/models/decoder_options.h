// SPDX-License-Identifier: Apache-2.0
// The options that families of decoder.h share, and how they become a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/layer_types.h"

namespace tessera::models {

struct DecoderOptions : FamilyOptions {
  DecoderOptions() { tie_embeddings = false; }
  std::optional<std::int64_t> head_dim;
  double rope_theta = 10000.0;
  std::string rope_scaling = "default";
  double rope_factor = 1.0, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;
  std::int64_t rope_original_positions = 8192;
  double rope_beta_fast = 32.0, rope_beta_slow = 1.0;
  std::optional<double> rope_attention_factor;
  std::string activation = "silu";
  double attention_dropout = 0.0;
  double rms_norm_eps = 1e-5;
  // A family describes those of the following that it has.
  bool attention_bias = false;  ///< of the four projections of attention
  bool mlp_bias = false;        ///< of the three projections of the MLP
  double rotary_share = 1.0;    ///< share of the channels of a head that turn
  std::int64_t sliding_window = 0;
  std::vector<std::string> layer_types;  ///< empty: the rule

 protected:
  /// What differs between families in the documentation of the sizes; the defaults are LLaMA's.
  struct Texts {
    std::string positions_default = "of the preset, data.sequence_length, or 1024";
    std::string ffn_default = "of the preset, or 8/3 x hidden_size rounded up to a multiple of 256";
  };
  /// Sizes and rotary positions.
  void describe_shape(config::Fields& fields,
                      const std::vector<Preset>& presets,
                      const Texts& texts);
  /// `text`: where it is not about all four projections.
  void describe_attention_bias(config::Fields& fields, std::string text = "");
  void describe_mlp_bias(config::Fields& fields);
  void describe_rotary_share(config::Fields& fields);
  /// `sliding_window` and `layer_types`.
  void describe_windows(config::Fields& fields);
  /// Everything else; the last call of a family's describe().
  void describe_rest(config::Fields& fields);

 private:
  void describe_rotary(config::Fields& fields);
};

/// The rotary scalings whose parameters DecoderOptions has.
std::vector<std::string> rotary_scalings();

/// The name, the presets and the switches of one family of decoders.
struct DecoderFamily {
  std::string name;
  std::vector<Preset> presets;
  /// Sets what the options have no common key for, after everything else is set.
  std::function<void(DecoderShape& shape)> specialize;
};
/// Family::resolve of such a family.
Resolved resolve_decoder(const DecoderFamily& family,
                         const DecoderOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins);
/// Whether the layer of this number has a window.
using LayerRule = std::function<bool(std::int64_t layer)>;
/// layer_types for that many layers.
std::vector<std::string> layer_types_of(std::int64_t layers, const LayerRule& slides);
/// One kind for each layer: with the window where layer_types says so, or, where it is empty, where
/// `slides` does for the layer's number.
std::vector<DecoderLayerKind> windows_by_layer(const DecoderOptions& options,
                                               std::int64_t layers,
                                               const LayerRule& slides);

}  // namespace tessera::models
