// SPDX-License-Identifier: Apache-2.0
// The CONFIG argument of a command.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

/// Reads a configuration: a file (`.hjson`: full Hjson), or DeepSpeed's URL-safe base64 of one.
/// Throws Error{Config} if it is missing, a folder, far too large for a configuration, or not JSON;
/// for a configuration in Python the message says how to convert it to JSON.
json::Value read_config(const std::string& argument);
/// The configuration, and whether it is Python, as Colossal-AI's are.
struct ReadConfig {
  json::Value value;
  bool python = false;
};
/// The same, but the file may also be Python.
ReadConfig read_config_or_python(const std::string& argument);
/// The name for a run of that configuration: the argument, or "run" for base64.
std::string name_of_config(const std::string& argument);
/// True if the word looks like such an argument and not like a key.
bool names_config(const std::string& word);

/// Throws Error{Config} with the line to type if `word` is a Python script, or a configuration in
/// Python; `rest` are the other words of the command line.
void refuse_script(const std::string& word, const std::vector<std::string>& rest);

}  // namespace tessera::cli
