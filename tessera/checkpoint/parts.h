// SPDX-License-Identifier: Apache-2.0
// A checkpoint whose shards lie on several disks.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// The checkpoint in `folder`, which has its manifest, with the shards that only `others` hold.
/// Every byte that is read is held against its checksum. Error{Format} for damage, a shard that is
/// nowhere, and folders whose manifests differ.
Checkpoint open_parts(const std::filesystem::path& folder,
                      const std::vector<std::filesystem::path>& others);

}  // namespace tessera::checkpoint
