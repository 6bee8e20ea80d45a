// SPDX-License-Identifier: Apache-2.0
// Tells whether a folder can be written, without writing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::files {

/// Why nobody can create a file in `folder`, which must exist: it is not a folder, the user has no
/// permission, or its file system is one of the kernel's (proc, sysfs), in which nobody creates
/// files, whatever the permissions say. Nothing if one can be created as far as this tells: a full
/// disk is not noticed.
std::optional<std::string> obstacle_to_files_in(const std::filesystem::path& folder);

/// The nearest folder above `path`, or `path` itself, that exists: where the folders of `path`
/// would be created. A link to something that does not exist counts as there.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

}  // namespace tessera::files
