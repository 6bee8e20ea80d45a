// SPDX-License-Identifier: Apache-2.0
// Declares a family that is based on decoder.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder_hf.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/decoder_weights.h"
#include "tessera/models/family.h"

namespace tessera::models {

/// A decoder family with its own options type; this template adds what all such families share.
template <class Options>
struct DecoderFamilyOf {
  std::vector<Preset> presets;
  HfDecoder hf;  ///< its model_type must be the family's name
  /// Sets values without a common option, after everything else is set.
  void (*specialize)(const Options& options, DecoderShape& shape) = nullptr;
  /// Reports options that contradict each other.
  void (*check)(const Options& options, const DecoderShape& shape, Checks& checks) = nullptr;
  /// Reads the family's own keys of config.json, after the common ones; nullptr: it has none.
  void (*read)(const HfConfig& keys, Options& out) = nullptr;
  /// Writes these keys; `options` are resolved.
  void (*write)(const Options& options, json::Value& hf_config) = nullptr;
  WeightMap weight_map = decoder_weights();
  std::vector<std::string> text_of = {};  ///< Family::text_of
  std::vector<Adjustable> adjustable = {{"attention_dropout"},
                                        {"classifier_dropout"},
                                        {"init_std"},
                                        {"label_smoothing"},
                                        {"rope_length"}};

  [[nodiscard]] Family family() const {
    return FamilyOf<Options>{.presets = presets,
                             .adjustable = adjustable,
                             .resolve =
                                 [*this](const Options& options,
                                         std::int64_t tokenizer_size,
                                         std::optional<std::int64_t> sequence_length,
                                         config::Problems& problems,
                                         const config::Origins& origins) {
                                   const auto own = [&](DecoderShape& shape) {
                                     if (specialize != nullptr) specialize(options, shape);
                                   };
                                   const auto own_check = [&](const DecoderShape& shape,
                                                              Checks& checks) {
                                     if (check != nullptr) check(options, shape, checks);
                                   };
                                   return resolve_decoder({hf.model_type, presets, own, own_check},
                                                          options,
                                                          tokenizer_size,
                                                          sequence_length,
                                                          problems,
                                                          origins);
                                 },
                             .from_hf =
                                 [*this](const json::Value& hf_config) {
                                   const HfConfig keys(hf_config);
                                   Options out;
                                   read_decoder(keys, hf, out);
                                   if (read != nullptr) read(keys, out);
                                   return out;
                                 },
                             .to_hf =
                                 [*this](const Options& options) {
                                   json::Value out = decoder_to_hf(options, hf);
                                   if (write != nullptr) write(options, out);
                                   return out;
                                 },
                             .weight_map = weight_map,
                             .text_of = text_of}
        .family();
  }
};

}  // namespace tessera::models
