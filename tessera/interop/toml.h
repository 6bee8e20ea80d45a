// SPDX-License-Identifier: Apache-2.0
// Reads TOML, as torchtitan has it, into values with their places.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Reads a document. Dates and times become texts. Throws Error{Config} with source:line:column for
/// text that is not TOML, keys that occur twice, and numbers that are not finite;
/// Error{Unsupported} if the program was built without toml++. `source` names the file.
json::Value parse_toml(std::string_view text, const std::string& source);

/// True if the program was built with toml++.
bool reads_toml();

}  // namespace tessera::interop
