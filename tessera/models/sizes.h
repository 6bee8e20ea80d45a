// SPDX-License-Identifier: Apache-2.0
// Sizes of a transformer: presets, defaults that follow from other values, and the checks between
// them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/options.h"

namespace tessera::models {

/// What a published model has in one of its family's keys.
struct PresetValue {
  std::string key;
  std::variant<bool, std::int64_t, double, std::string> value;
};

/// A named model of a family: its sizes (0: no opinion), and its values of other keys where these
/// are not the family's defaults.
struct Preset {
  std::string name;
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0;
  std::int64_t max_positions = 0;
  std::int64_t num_kv_heads = 0, ffn_hidden_size = 0, head_dim = 0;
  bool bytes = false;           ///< small enough that its vocabulary is the bytes
  std::int64_t vocab_size = 0;  ///< of the published model
  std::vector<PresetValue> values = {};
};
std::vector<std::string> names_of(const std::vector<Preset>& presets);

/// The sizes that every transformer has.
struct Sizes {
  std::int64_t num_layers = 4, hidden_size = 128, num_heads = 4, vocab_size = 256,
               max_positions = 1024, ffn_hidden_size = 512;
  std::int64_t num_kv_heads = 0;    ///< 0: num_heads
  std::int64_t tokenizer_size = 0;  ///< ids at and above are never generated; 0: all may be
  [[nodiscard]] std::int64_t kv_heads() const {
    return num_kv_heads > 0 ? num_kv_heads : num_heads;
  }
};

/// Adds problems of the section `model` with the place of the key.
class Checks {
 public:
  Checks(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}
  void require(bool holds, const std::string& path, std::string what, std::string fix);

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

/// The preset that the options name, or `otherwise` if they give no size; nullptr if they give
/// sizes alone.
const Preset* find_preset(const FamilyOptions& options,
                          const std::vector<Preset>& presets,
                          const std::string& otherwise,
                          Checks& checks);
/// num_layers, hidden_size, num_heads and num_kv_heads: given, or of the preset.
void set_layers(const FamilyOptions& options, const Preset* preset, Sizes& sizes, Checks& checks);
/// Heads divide the channels, and heads of keys and values divide the heads.
void check_heads(const Sizes& sizes, Checks& checks);
/// max_positions: given, of a preset that was named, or the length of the sequences.
void set_positions(const FamilyOptions& options,
                   const Preset* preset,
                   std::optional<std::int64_t> sequence_length,
                   Sizes& sizes,
                   Checks& checks);
/// vocab_size: given; or of a preset that was named, if all ids of the tokenizer have a row there;
/// or the tokenizer's size rounded up.
void set_vocabulary(const FamilyOptions& options,
                    std::int64_t tokenizer_size,
                    Sizes& sizes,
                    Checks& checks,
                    const Preset* preset = nullptr);
/// Where the sizes come from that were not given, by key.
std::map<std::string, std::string> derivations_of(const FamilyOptions& options,
                                                  const std::string& otherwise,
                                                  const Sizes& sizes);
/// Sizes for which blocks can be listed, though they were refused: what follows from them would
/// only be refused again.
void make_possible(Sizes& sizes);

}  // namespace tessera::models
