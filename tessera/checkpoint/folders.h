// SPDX-License-Identifier: Apache-2.0
// Names of folders under a run's `checkpoints/`, and rules for their removal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// Returns "step-00000120": the name of a complete checkpoint.
std::string step_name(std::int64_t step);
/// Returns ".replaced-step-00000120": also complete; it counts only while there is no step-00000120
/// next to it.
std::string replaced_name(std::int64_t step);
/// Returns ".tmp-step-00000120-4711": the name of a save or removal by process 4711.
std::string temp_name(std::int64_t step, std::int64_t pid);

/// Returns ".tmp-step-00000120-node-00001-4711": the name of a node's part of a save whose rank 0
/// is process 4711.
std::string node_temp_name(std::int64_t step, int node, std::int64_t pid);
/// Returns ".tmp-NAME-4711": the name of a draft of NAME by process 4711.
std::string draft_name(const std::string& name, std::int64_t pid);

/// Returns the step in a name made by step_name() or replaced_name().
std::optional<std::int64_t> step_of(const std::filesystem::path& folder);

/// Removes temporary folders of processes that have ended, and of this one (which saves or removes
/// one at a time). Also removes a replaced checkpoint if its successor exists; if the successor
/// never came, the replaced one gets its name back.
void remove_stale_folders(Storage& storage, const std::filesystem::path& root);

/// Removes drafts of `target` whose processes have ended, and that of this process. Failures are
/// logged as warnings.
void remove_stale_drafts(Storage& storage, const std::filesystem::path& target);

}  // namespace tessera::checkpoint
