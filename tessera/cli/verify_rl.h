// SPDX-License-Identifier: Apache-2.0
// The subcommand rl of tessera verify.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// tessera verify rl CONFIG: checks that sampled tokens have the log-probabilities that training
/// computes. `line`: the words after "rl".
int verify_rl(const std::vector<std::string>& line);

}  // namespace tessera::cli
