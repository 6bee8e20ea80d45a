// SPDX-License-Identifier: Apache-2.0
// The commands of the program: each registers itself in its own file.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/registry.h"

namespace tessera::cli {

struct Command {
  std::string help;  ///< one line for the overview; empty: not listed
  /// Takes the words after the command's name and returns the exit code. Errors are thrown.
  int (*run)(const std::vector<std::string>& words);
};

Registry<Command>& commands();
#define TESSERA_COMMAND(name, help, function)    \
  static const bool tessera_command_##function = \
      ::tessera::cli::commands().add(name, {help, function})

}  // namespace tessera::cli
