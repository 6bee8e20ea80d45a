// SPDX-License-Identifier: Apache-2.0
// Checks of the folders in which parts of a training rest: offload_optimizer, offload_param and
// activation_checkpointing.offload with device nvme.
#pragma once

#include <string>
#include <vector>

namespace tessera::planner {

class Plan;

/// Throws Error{Io} if a folder is missing or not writable. Notes what stays in memory, and a
/// folder that is in memory itself.
void check_offload_folder(const Plan& plan, std::vector<std::string>& notes);
/// Throws Error{Io} unless `folder`, the value of `key`, is one in which a tier can make files.
void require_disk_folder(const std::string& key, const std::string& folder);
/// Throws Error{Io} if the disk of a folder is too small for `ranks` ranks of the plan's model and
/// of the others in its Needs. While a save is written in the background, the disk has the values
/// of its step and those of later updates.
void check_offload_space(const Plan& plan, int ranks);

}  // namespace tessera::planner
