// SPDX-License-Identifier: Apache-2.0
// A configuration in the words of another system.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

enum class Dialect : std::uint8_t { Tessera, DeepSpeed, ColossalAi };

/// "tessera", "deepspeed", "colossalai" in any case. Error{Config} with the nearest name.
Dialect dialect_named(std::string_view name);
/// Colossal-AI's if a key is only its own, ours if one is only ours, else DeepSpeed's.
Dialect dialect_of(const json::Value& source);

struct Converted {
  json::Value value;
  std::vector<std::string> notes;  ///< what has no counterpart, one line each
};
/// Keys that mean the same keep their values ("auto" too); the others are named in `notes`. Keys of
/// tessera and DeepSpeed in a file in Colossal-AI's words stay what they are. null counts as not
/// given. Pure.
Converted convert_config(const json::Value& source, Dialect to);
/// The same for an object whose dialect is known: Python is Colossal-AI's, whatever keys it has.
Converted convert_config(const json::Value& source, Dialect from, Dialect to);

}  // namespace tessera::interop
