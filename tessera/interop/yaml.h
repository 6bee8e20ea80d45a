// SPDX-License-Identifier: Apache-2.0
// Reads YAML, as accelerate, axolotl and LLaMA-Factory have it, into values with their places.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Reads one document. Words become null, true or false and numbers as in PyYAML; 1e-4 is a number
/// as well. Anchors, aliases and merge keys (<<) are resolved. Throws Error{Config} with
/// source:line:column for text that is not YAML, duplicate keys, a second document, keys that are
/// no texts, and values that nest deeper than 100 levels or have, with their aliases, more than
/// 100,000 parts. `source` names the file.
json::Value parse_yaml(std::string_view text, const std::string& source);

/// Reads a file of settings by its name: .yaml and .yml as YAML, .toml as TOML, .py as assignments
/// of literals (nothing is executed), all else as JSON (.hjson: Hjson).
/// Throws Error{Config} if it does not exist, is a folder, or is larger than 4 MiB, and as the
/// readers.
json::Value read_settings(const std::string& path);

}  // namespace tessera::interop
