// SPDX-License-Identifier: Apache-2.0
// Checkpoints of hosts that share no disk: each has a part, its ranks' shards and a manifest of
// them. Bytes: docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

/// "node-00001.json": the manifest of a host's part.
std::string node_part_name(int node);
/// Those that lie in `folder`, by number; none where it cannot be listed.
std::vector<std::filesystem::path> node_parts_in(const std::filesystem::path& folder);

struct JoinedParts {
  /// What all parts hold together. `meta` and `part.save` are those of the first.
  Manifest manifest;
  std::vector<int> missing;  ///< numbers of the parts that are nowhere
};
/// The parts that lie in `folders`, of which there is one. The same one may lie there twice.
/// Error{Format} for damage, and where they are not of one save.
JoinedParts join_node_parts(const std::vector<std::filesystem::path>& folders);

/// Collective, for ranks on hosts that share no disk: on each the newest checkpoint under its
/// `root` of which every host has its part, those of an interrupted replacement included; nothing
/// where there is none. Costs about 130 any() for each that some host lacks.
std::optional<std::filesystem::path> newest_common(const std::filesystem::path& root,
                                                   const Ranks& ranks);
/// Collective. Error{Format} on all ranks, the same, unless they opened one and the same save.
void require_one_save(const Checkpoint& checkpoint, const Ranks& ranks);

}  // namespace tessera::checkpoint
