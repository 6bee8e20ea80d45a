// SPDX-License-Identifier: Apache-2.0
// The part of the zip format that torch writes: entries stored as they are. Files from outside are
// hostile: every offset is checked before use, nothing is extracted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace tessera::interop {

/// Where an entry's bytes lie in the file.
struct ZipEntry {
  std::uint64_t begin = 0, size = 0;
};

/// The entries of a mapped zip file (zip64 too) by name. Error{Format} with `source` and entry for
/// compressed or encrypted entries, more than one disk, entries that overlap, that lie outside of
/// the file or whose local header contradicts the directory, names twice, and names that lead out
/// of a folder. Checksums are not looked at: torch lets its writers leave them out.
std::map<std::string, ZipEntry, std::less<>> read_zip(std::span<const std::byte> file,
                                                      const std::string& source);

}  // namespace tessera::interop
