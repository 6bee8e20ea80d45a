// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a run is its model.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::interop {

/// Which checkpoint of a run is read.
struct ChosenCheckpoint {
  std::filesystem::path path;  ///< the checkpoint, or the given path if it is not a run
  std::string why;             ///< for people, with its folder; empty if there was no choice
  /// The newest one of a run whose best was chosen because its training stopped early.
  std::filesystem::path newest;
};
/// Returns the best checkpoint of a run that stopped early; otherwise, or with `last`, the newest.
/// Throws Error{Format} for a damaged one.
ChosenCheckpoint chosen_checkpoint(const std::filesystem::path& path, bool last = false);

}  // namespace tessera::interop
