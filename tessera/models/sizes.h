// SPDX-License-Identifier: Apache-2.0
// Sizes of a transformer: presets, derived defaults, and checks between sizes.
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

/// A published model's value of a key of its family.
struct PresetValue {
  std::string key;
  std::variant<bool, std::int64_t, double, std::string> value;
};

/// A named model of a family: its sizes (0: not set), and its values of other keys that differ from
/// the family's defaults. A table of presets has a line for each, in this order of columns.
struct Preset {
  std::string name;
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0,
               ffn_hidden_size = 0, max_positions = 0;
  std::int64_t vocab_size = 0;  ///< vocabulary of the published model
  std::vector<PresetValue> values = {};
  std::int64_t head_dim = 0;
  bool bytes = false;  ///< small model with a vocabulary of bytes
};
/// A small model with a vocabulary of bytes.
Preset nano(std::string name,
            std::int64_t num_layers,
            std::int64_t hidden_size,
            std::int64_t num_heads,
            std::int64_t num_kv_heads = 0,
            std::int64_t ffn_hidden_size = 0,
            std::int64_t head_dim = 0,
            std::vector<PresetValue> values = {});
std::vector<std::string> names_of(const std::vector<Preset>& presets);

/// The sizes that every transformer has.
struct Sizes {
  std::int64_t num_layers = 4, hidden_size = 128, num_heads = 4, vocab_size = 256,
               max_positions = 1024, ffn_hidden_size = 512;
  std::int64_t num_kv_heads = 0;    ///< 0: num_heads
  std::int64_t tokenizer_size = 0;  ///< generation never produces ids from this one on; 0: no limit
  [[nodiscard]] std::int64_t kv_heads() const {
    return num_kv_heads > 0 ? num_kv_heads : num_heads;
  }
};

/// Adds problems of the section `model` with the key's place.
class Checks {
 public:
  Checks(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}
  void require(bool holds, const std::string& path, std::string what, std::string fix);
  /// Returns whether a problem of this key, whose value is absent then, was already found.
  [[nodiscard]] bool concern(const std::string& path) const { return problems_.concern(path); }

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

/// The preset that the options name, or `otherwise` if they give no size; nullptr if they give only
/// sizes.
const Preset* find_preset(const FamilyOptions& options,
                          const std::vector<Preset>& presets,
                          const std::string& otherwise,
                          Checks& checks);
/// Sets num_layers, hidden_size, num_heads and num_kv_heads: given values, or those of the preset.
void set_layers(const FamilyOptions& options, const Preset* preset, Sizes& sizes, Checks& checks);
/// Checks that heads divide the channels, and that heads of keys and values divide the heads.
void check_heads(const Sizes& sizes, Checks& checks);
/// Sets max_positions: the given value, that of a named preset, or the sequence length.
void set_positions(const FamilyOptions& options,
                   const Preset* preset,
                   std::optional<std::int64_t> sequence_length,
                   Sizes& sizes,
                   Checks& checks);
/// Sets vocab_size: the given value; or that of a named preset, if it has a row for every id of the
/// tokenizer; or the tokenizer's size rounded up.
void set_vocabulary(const FamilyOptions& options,
                    std::int64_t tokenizer_size,
                    Sizes& sizes,
                    Checks& checks,
                    const Preset* preset = nullptr);
/// The source of each size that was not given, by key.
std::map<std::string, std::string> derivations_of(const FamilyOptions& options,
                                                  const std::string& otherwise,
                                                  const Sizes& sizes);
/// Replaces refused sizes by possible ones, so that blocks can be listed without further errors.
void make_possible(Sizes& sizes);

}  // namespace tessera::models
