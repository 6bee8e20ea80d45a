// SPDX-License-Identifier: Apache-2.0
// Facts about the folder in which a tier keeps its files: its disk, and whether it is on a network.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::memory {

/// A number for the disk of a folder; 0 if it is not known.
std::uint64_t disk_of(const std::string& folder);
/// True if the hosts of a job may share the folder: NFS, SMB, CIFS, Lustre, Ceph, GPFS, BeeGFS.
bool is_on_network(const std::string& folder);
/// True if the files of the folder are in memory (tmpfs).
bool is_in_memory(const std::string& folder);

}  // namespace tessera::memory
