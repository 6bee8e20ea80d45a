// SPDX-License-Identifier: Apache-2.0
// Opens a checkpoint whose shards are on several disks.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Opens the checkpoint in `folder`, which has its manifest, with the shards that only `others`
/// hold; or a checkpoint of which each folder has nodes' parts. Every byte that is read is
/// verified. Throws Error{Format} for damage, a missing shard or part, and folders of different
/// checkpoints.
Checkpoint open_parts(const std::filesystem::path& folder,
                      const std::vector<std::filesystem::path>& others);

}  // namespace tessera::checkpoint
