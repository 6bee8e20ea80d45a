// SPDX-License-Identifier: Apache-2.0
// tessera rl branch: a run that goes on from a step of another one with other options.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// Runs the command; `line` begins with "branch". Returns its exit code.
int rl_branch(const std::vector<std::string>& line);

}  // namespace tessera::cli
