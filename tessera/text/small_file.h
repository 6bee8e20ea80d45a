// SPDX-License-Identifier: Apache-2.0
// Reads the small files next to a model's weights.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::text {

/// The content of config.json, tokenizer.json and the like. Throws Error{Format} unless it is a
/// regular file, or a link to one, of at most 256 MiB: reading a pipe would block, and a device has
/// no end. Throws Error{Io} if it cannot be read.
std::string read_small_file(const std::filesystem::path& path);

}  // namespace tessera::text
