// SPDX-License-Identifier: Apache-2.0
// A checkpoint whose shards lie on several disks.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// The checkpoint in `folder`, which has its manifest, with the shards that only `others` hold; or
/// of which each folder has nodes' parts. Every byte that is read is held against its checksum.
/// Error{Format} for damage, a shard or part that is nowhere, and folders of different checkpoints.
Checkpoint open_parts(const std::filesystem::path& folder,
                      const std::vector<std::filesystem::path>& others);

}  // namespace tessera::checkpoint
