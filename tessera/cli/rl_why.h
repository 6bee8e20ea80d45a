// SPDX-License-Identifier: Apache-2.0
// tessera rl why: which completions an update learned from.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// Runs the command; `line` begins with "why". Returns its exit code.
int rl_why(const std::vector<std::string>& line);

}  // namespace tessera::cli
