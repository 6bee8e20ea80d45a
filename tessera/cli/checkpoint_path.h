// SPDX-License-Identifier: Apache-2.0
// Resolves a PATH on the command line to checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::cli {

/// Returns a checkpoint's folder itself, or every complete checkpoint of a run or of its
/// `checkpoints` folder, oldest first. Empty if there is none. Throws Error{Format} if `path` does
/// not exist.
std::vector<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

}  // namespace tessera::cli
