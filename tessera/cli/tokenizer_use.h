// SPDX-License-Identifier: Apache-2.0
// tessera tokenizer encode, decode and describe: uses the tokenizer of a model.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// Returns true if the first word names one of the actions.
bool uses_tokenizer(const std::vector<std::string>& line);
/// Runs the action; `line` begins with it. Returns the exit code.
int use_tokenizer(const std::vector<std::string>& line);

}  // namespace tessera::cli
