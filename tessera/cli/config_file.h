// SPDX-License-Identifier: Apache-2.0
// The CONFIG argument of a command.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

/// Reads a configuration: a file (`.hjson`: Hjson proper), or DeepSpeed's URL-safe base64 of one.
/// Error{Config} if it is missing, a folder, far too large for a configuration, or no JSON; Python
/// that is a configuration is told how to become JSON.
json::Value read_config(const std::string& argument);
/// What was read, and whether it is Python, as Colossal-AI's configurations are.
struct ReadConfig {
  json::Value value;
  bool python = false;
};
/// The same where a file may be Python too.
ReadConfig read_config_or_python(const std::string& argument);
/// What a run of that configuration is called after: the argument, or "run" in place of base64.
std::string name_of_config(const std::string& argument);
/// Whether the word looks like such an argument and not like a key.
bool names_config(const std::string& word);

/// Error{Config} with the line to type where `word` is a Python script, or a configuration in
/// Python: `rest` are the other words of the command line.
void refuse_script(const std::string& word, const std::vector<std::string>& rest);

}  // namespace tessera::cli
