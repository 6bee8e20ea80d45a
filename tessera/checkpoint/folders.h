// SPDX-License-Identifier: Apache-2.0
// Names of folders under a run's `checkpoints/`, and who may remove them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// "step-00000120": a complete checkpoint.
std::string step_name(std::int64_t step);
/// ".replaced-step-00000120": complete too; counts only while no step-00000120 stands beside it.
std::string replaced_name(std::int64_t step);
/// ".tmp-step-00000120-4711": of a save or removal by process 4711.
std::string temp_name(std::int64_t step, std::int64_t pid);

/// ".tmp-step-00000120-node-00001-4711": of a node's part of a save whose rank 0 is process 4711.
std::string node_temp_name(std::int64_t step, int node, std::int64_t pid);
/// ".tmp-NAME-4711": of process 4711, which writes NAME.
std::string draft_name(const std::string& name, std::int64_t pid);

/// The step in a name that step_name() or replaced_name() made.
std::optional<std::int64_t> step_of(const std::filesystem::path& folder);

/// Removes temporary folders of processes that are gone, and of this one (which saves or removes
/// one at a time). A replaced checkpoint goes too where its successor stands, and gets its name
/// back where the successor never came.
void tidy(Storage& storage, const std::filesystem::path& root);

/// Removes drafts of `target` whose processes are gone, and that of this one. What cannot be
/// removed is warned of.
void tidy_drafts(Storage& storage, const std::filesystem::path& target);

}  // namespace tessera::checkpoint
