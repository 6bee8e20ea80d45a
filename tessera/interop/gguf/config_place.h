// SPDX-License-Identifier: Apache-2.0
// Keys of a config.json as models::GgufNames has them: "ffn_config.moe_top_k" is a key of a
// section.
#pragma once

#include <string>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The place of the key, for writing. A section that does not exist is added. at_path() reads it.
inline json::Value& config_place(json::Value& config, const std::string& key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) return config[key];
  json::Value& section = config[key.substr(0, dot)];
  if (!section.is_object()) section = json::Value::object();
  return section[key.substr(dot + 1)];
}

}  // namespace tessera::interop
