// SPDX-License-Identifier: Apache-2.0
// Resolves a PATH on the command line to checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/arguments.h"

namespace tessera::cli {

/// Returns a checkpoint's folder itself, or every complete checkpoint of a run or of its
/// `checkpoints` folder, oldest first. Empty if there is none. Throws Error{Format} if `path` does
/// not exist.
std::vector<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

/// Declares --last of a command that reads a model.
void add_last(Arguments& arguments, bool* last);
/// Returns the path of interop::chosen_checkpoint() and prints the choice on standard error, on the
/// first rank of a launcher's job alone, unless `common` is quiet.
std::filesystem::path model_at(const std::filesystem::path& path, bool last, const Common& common);

}  // namespace tessera::cli
