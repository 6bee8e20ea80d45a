// SPDX-License-Identifier: Apache-2.0
// Takes a command line of another program apart: launchers with their options, the program or
// script that they start, and its own words.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/interop/command_meaning.h"

namespace tessera::interop {

struct CommandWords {
  /// Launchers in the order of the words, each with the words before the program that it starts.
  std::vector<std::pair<const LauncherProgram*, std::vector<std::string>>> launchers;
  std::string script;             ///< as typed; of a program of several words all of them
  std::vector<std::string> rest;  ///< the words behind it
};

/// Takes `words` apart. std::nullopt: they begin with nothing that is read. `script` is empty if
/// launchers start nothing.
std::optional<CommandWords> split_command(const std::vector<std::string>& words);

/// Returns the program of the script, among several of its name the one whose folder is in the
/// path, else the one of whose options some are among `rest`, else the one that needs neither;
/// nullptr: none is known. Throws Error{Config} that names the programs if several remain.
const Program* program_of(const CommandWords& command);

/// Throws Error{Config} for typographic quotes and dashes, and for shell variables that are left
/// in.
void check_typed(const std::vector<std::string>& words);

}  // namespace tessera::interop
