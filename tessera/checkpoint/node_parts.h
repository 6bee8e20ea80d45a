// SPDX-License-Identifier: Apache-2.0
// Checkpoints of hosts that share no disk: each has a part that consists of its ranks' shards and a
// manifest. The bytes are specified in docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

/// Returns "node-00001.json": the name of the manifest of a host's part.
std::string node_part_name(int node);
/// Returns the part manifests in `folder`, by number; none if it cannot be listed.
std::vector<std::filesystem::path> node_parts_in(const std::filesystem::path& folder);

struct JoinedParts {
  /// The contents of all parts together. `meta` and `part.save` are those of the first.
  Manifest manifest;
  std::vector<int> missing;  ///< numbers of the missing parts
};
/// Joins the parts in `folders`, of which there is at least one. The same part may be there twice.
/// Throws Error{Format} for damage and for parts of different saves.
JoinedParts join_node_parts(const std::vector<std::filesystem::path>& folders);

/// Collective, for ranks on hosts that share no disk: returns on each the newest checkpoint under
/// its `root` of which every host has its part, including those of an interrupted replacement;
/// nothing if there is none. Cost: five collectives for each checkpoint that some host lacks.
std::optional<std::filesystem::path> newest_common(const std::filesystem::path& root,
                                                   const Ranks& ranks);
/// Collective. Throws the same Error{Format} on all ranks unless they opened the same save.
void require_one_save(const Checkpoint& checkpoint, const Ranks& ranks);

}  // namespace tessera::checkpoint
