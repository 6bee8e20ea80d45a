// SPDX-License-Identifier: Apache-2.0
// The small files that lie beside a model's weights.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::data {

/// The content of config.json, tokenizer.json and their like. Error{Format} unless it is a plain
/// file, or a link to one, of at most 256 MiB: a pipe would be waited for, and a device has no end.
/// Error{Io} where it cannot be read.
std::string read_small_file(const std::filesystem::path& path);

}  // namespace tessera::data
