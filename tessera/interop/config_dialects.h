// SPDX-License-Identifier: Apache-2.0
// Converts configurations between the key names of tessera, DeepSpeed and Colossal-AI.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

enum class Dialect : std::uint8_t { Tessera, DeepSpeed, ColossalAi };

/// "tessera", "deepspeed", "colossalai", in any case. Throws Error{Config} with the nearest name.
Dialect dialect_named(std::string_view name);
/// Colossal-AI's if a key is unique to it, tessera's if a key is unique to tessera, else
/// DeepSpeed's.
Dialect dialect_of(const json::Value& source);

struct Converted {
  json::Value value;
  std::vector<std::string> notes;  ///< settings without a counterpart, one line each
};
/// Keys with the same meaning keep their values ("auto" too); the others are listed in `notes`.
/// Keys of tessera and DeepSpeed in a Colossal-AI file are kept. null counts as absent. Pure.
Converted convert_config(const json::Value& source, Dialect to);
/// The same for an object whose dialect is known: Python files are Colossal-AI's, whatever their
/// keys.
Converted convert_config(const json::Value& source, Dialect from, Dialect to);

}  // namespace tessera::interop
