// SPDX-License-Identifier: Apache-2.0
// Archives in the format of PKZIP whose files are not compressed.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tessera::report {

/// Writes the files under the given names into an archive; replaces `path` when it is complete.
/// Error{Io}: also if a file or the archive reaches 4 GiB. Source: PKWARE's APPNOTE 6.3.
void write_stored_zip(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, std::filesystem::path>>& files);

}  // namespace tessera::report
