// SPDX-License-Identifier: Apache-2.0
// What a PATH on the command line means when a checkpoint is wanted.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::cli {

/// A checkpoint's folder itself, or every complete checkpoint of a run or of its `checkpoints`
/// folder, oldest first. Empty if there is none. Error{Format} if `path` does not exist.
std::vector<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

}  // namespace tessera::cli
