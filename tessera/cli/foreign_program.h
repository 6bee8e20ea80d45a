// SPDX-License-Identifier: Apache-2.0
// `tessera torchrun ...`, `tessera trl dpo ...`: commands of other programs behind tessera's name.
#pragma once

#include <string>
#include <vector>

#include "tessera/interop/foreign_command.h"

namespace tessera::cli {

/// Runs a command of another program, for which interop::is_foreign_command() is true, and returns
/// the exit code. Errors as of the command that it means.
int run_foreign_program(const std::vector<std::string>& words);

/// The lines with which a dry run says what a command means: every key, its value and its origin.
std::vector<std::string> meaning_lines(const interop::ForeignCommand& command);

/// `tessera config convert -- COMMAND`: prints the configuration that the command means.
int convert_command(const std::vector<std::string>& words);

}  // namespace tessera::cli
