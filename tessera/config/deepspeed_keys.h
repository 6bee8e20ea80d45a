// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's configuration keys. All of them are known from the start: each is read by the options
// of this house, accepted because it has no meaning here, or refused with the reason and the
// nearest way. The same rows make docs/deepspeed.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::config {

enum class KeyType : std::uint8_t { Bool, Integer, Number, String, Array, Object, Any };

enum class KeyPolicy : std::uint8_t {
  Done,      ///< read by the options: left in place
  Section,   ///< an object whose keys have rows of their own; others are unknown
  Inside,    ///< counts only where the refused key of its block is switched on: taken out
  Accepted,  ///< has no meaning here: taken out, and told once
  Alias,     ///< another name of the key in `about`: moved there
  Later,     ///< not built yet: refused unless it has one of the values in `off`
  Never,     ///< not of this house: refused alike
};

/// One row of the table. Texts without a value are empty.
struct DeepSpeedKey {
  std::string_view path;  ///< "zero_optimization.overlap_comm"; "amp.*" is any other key there
  KeyType type = KeyType::Any;
  KeyPolicy policy = KeyPolicy::Done;
  std::string_view initial;  ///< DeepSpeed's default
  std::string_view about;    ///< why it has no meaning or is refused; Alias: the key it stands for
  /// Later, Never: JSON array of the values that switch it off; null always does. Alias: what false
  /// and true stand for, where the other key is no switch.
  std::string_view off;
  std::string_view fix;   ///< Later, Never: the nearest way
  std::string_view moot;  ///< Later, Never: why a value of `off` beyond its first has no meaning
};

/// Sections stand before their keys.
const std::vector<DeepSpeedKey>& deepspeed_keys();
/// The row of `path`, else the one that stands for any key of its section, else nullptr.
const DeepSpeedKey* find_deepspeed_key(std::string_view path);
/// Whether the keys of Colossal-AI, which the table knows too.
bool is_colossalai_key(std::string_view path);

/// A key that was taken out of the configuration.
struct TakenKey {
  std::string path;
  json::Value value;  ///< with its places
  std::string why;    ///< it has no meaning here
};
struct DeepSpeedTaken {
  json::Value left;                 ///< what the options read
  std::vector<TakenKey> accepted;   ///< without a meaning here
  std::vector<TakenKey> automatic;  ///< "auto", as Hugging Face writes it
};

/// Old spellings under their new names: `bfloat16`, `cpu_offload`, `NUM_MICRO_BATCHES`, ... Two
/// names of one key with different values go to `problems`, but for one from the command line,
/// which wins. Pure.
json::Value with_new_names(json::Value source, Problems& problems);

/// Takes apart a configuration in new names. `own`: paths of the keys and sections that the options
/// name. Wrong types, unknown keys (with the nearest name) and what is refused go to `problems`.
/// Pure.
DeepSpeedTaken take_deepspeed_keys(json::Value source,
                                   std::span<const std::string> own,
                                   Problems& problems);

/// "PATH is accepted but has no meaning here: WHY".
std::string note_of(const TakenKey& key);
/// Whether every key is DeepSpeed's or nobody's, and none is of this house alone (`own`, as above).
bool is_pure_deepspeed(const json::Value& source, std::span<const std::string> own);

}  // namespace tessera::config
