// SPDX-License-Identifier: Apache-2.0
// Hashes of the contents of files, which hosts compare.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace tessera::files {

/// Returns a hash of all bytes of the files, in order; their names do not matter. Calls `poll`
/// after every few MiB. Throws Error{Io} for a file that cannot be read. Cost: reads the files,
/// unless their hash is in the cache folder. Hashes of large files on local disks are kept there,
/// under the device, inode, size and times of modification and change of each file: the kernel sets
/// the last one whenever a file is written. Files that were changed in the last seconds are not
/// kept, because another change could have the same time.
std::uint64_t content_hash(std::span<const std::filesystem::path> files,
                           const std::function<void()>& poll = {});

}  // namespace tessera::files
