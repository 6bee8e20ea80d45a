// SPDX-License-Identifier: Apache-2.0
// Reads the part of the zip format that torch writes: uncompressed entries. Files from outside are
// hostile: every offset is checked before use, and nothing is extracted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace tessera::interop {

/// The position of an entry's bytes in the file.
struct ZipEntry {
  std::uint64_t begin = 0, size = 0;
};

/// The entries of a mapped zip file (also zip64) by name. Throws Error{Format} with `source` and
/// entry for compressed or encrypted entries, more than one disk, entries that overlap, that are
/// outside the file or whose local header contradicts the directory, repeated names, and names that
/// lead out of a folder. Checksums are not verified, because torch lets writers omit them.
std::map<std::string, ZipEntry, std::less<>> read_zip(std::span<const std::byte> file,
                                                      const std::string& source);

}  // namespace tessera::interop
