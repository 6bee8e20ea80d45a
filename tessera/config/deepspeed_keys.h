// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's configuration keys that the options of this house do not name themselves. All of them
// are known from the start: each is accepted where it is switched off or has no meaning here, and
// otherwise refused as not built yet.
#pragma once

#include <cstdint>
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
  Block,     ///< a Section of something that is not built, switched on by its key `enabled`
  Accepted,  ///< has no meaning here: taken out, with a note
  Alias,     ///< another name of the key in `about`: moved there
  NotBuilt,  ///< refused unless it has one of the values in `off`
};

/// One row of the table.
struct DeepSpeedKey {
  std::string_view path;  ///< "zero_optimization.overlap_comm"
  KeyType type;
  KeyPolicy policy;
  std::string_view about;  ///< Accepted: why it has no meaning; Alias: the key it stands for
  std::string_view
      off;  ///< NotBuilt: JSON array of the values that switch it off; null always does
};

const std::vector<DeepSpeedKey>& deepspeed_keys();

/// `source` without the keys that the options do not read. Wrong types, unknown keys inside
/// DeepSpeed's blocks and what is not built yet go to `problems`; one sentence for every accepted
/// key without a meaning goes to `notes`. "auto" (as Hugging Face writes it) counts as not given.
/// Pure.
json::Value take_deepspeed_keys(json::Value source,
                                Problems& problems,
                                std::vector<std::string>& notes);

}  // namespace tessera::config
