// SPDX-License-Identifier: Apache-2.0
// The CONFIG argument of a command.
#pragma once

#include <string>

#include "tessera/config/json.h"

namespace tessera::cli {

/// Reads a configuration: a file, or DeepSpeed's URL-safe base64 of one. Error{Config} if it is
/// missing, a folder, far too large for a configuration, or no JSON.
json::Value read_config(const std::string& argument);

}  // namespace tessera::cli
