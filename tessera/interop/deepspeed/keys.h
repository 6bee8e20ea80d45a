// SPDX-License-Identifier: Apache-2.0
// The table of DeepSpeed's configuration keys. Every key is either read by tessera's options,
// accepted because it has no effect here, or rejected with a reason and an alternative.
// docs/coming_from/deepspeed.md is generated from the same rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/key_dialect.h"

namespace tessera::interop {

enum class KeyType : std::uint8_t { Bool, Integer, Number, String, Array, Object, Any };

enum class KeyPolicy : std::uint8_t {
  Done,      ///< read by the options: left in place
  Section,   ///< an object whose keys have their own rows; keys without a row are unknown
  Inside,    ///< matters only if the rejected switch of its block is on: removed
  Accepted,  ///< has no effect here: removed, with one note
  Alias,     ///< another name of the key in `about`: moved there
  Later,     ///< not implemented yet: rejected unless it has one of the values in `off`
  Never,     ///< unsupported by design: rejected likewise
};

/// One row of the table. Absent texts are empty.
struct DeepSpeedKey {
  std::string_view path;  ///< "zero_optimization.overlap_comm"; "amp.*" is any other key there
  KeyType type = KeyType::Any;
  KeyPolicy policy = KeyPolicy::Done;
  std::string_view initial;  ///< DeepSpeed's default
  std::string_view
      about;  ///< why it has no effect or is rejected; Alias: the key that it stands for
  /// Later, Never: JSON array of the values that switch the key off; null always does. Alias: the
  /// values that false and true stand for, if the other key is not a boolean.
  std::string_view off;
  std::string_view fix;   ///< Later, Never: the nearest alternative
  std::string_view moot;  ///< Later, Never: why a value of `off` other than the first has no effect
};

/// Returns all rows. A section precedes its keys.
const std::vector<DeepSpeedKey>& deepspeed_keys();
/// Returns the row of `path`, else the row that matches any key of its section, else nullptr.
const DeepSpeedKey* find_deepspeed_key(std::string_view path);
/// Returns whether the key belongs to Colossal-AI, whose keys the table also contains.
bool is_colossalai_key(std::string_view path);

/// Replaces old spellings by the current names: `bfloat16`, `cpu_offload`, `NUM_MICRO_BATCHES`, ...
/// Two names of one key with different values are reported in `problems`, except that a value from
/// the command line takes precedence. `$schema`, which is for editors, is removed. Pure.
json::Value with_new_names(json::Value source, config::Problems& problems);

/// Splits a configuration that uses current names. `own`: paths of the keys and sections of
/// tessera's options. Wrong types, unknown keys (with the nearest name) and rejected keys are
/// reported in `problems`. Pure.
config::TakenKeys take_deepspeed_keys(json::Value source,
                                      std::span<const std::string> own,
                                      config::Problems& problems);

/// Returns whether the configuration has no key that only tessera knows (`own`, as above).
bool is_pure_deepspeed(const json::Value& source, std::span<const std::string> own);

}  // namespace tessera::interop
