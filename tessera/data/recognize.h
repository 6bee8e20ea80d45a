// SPDX-License-Identifier: Apache-2.0
// Recognizes the contents of a file by its first bytes.
#pragma once

#include <filesystem>

#include "tessera/data/sources.h"

namespace tessera::data {

/// Returns whether a file is one document of text or has a JSON object on each line. A name that
/// ends in .txt or .jsonl decides, unless the contents are clearly something else. Throws
/// Error{Data} for files that are not read as text (parquet, arrow, compressed files, archives,
/// images, JSON arrays, tables, other binary data), with the command that converts them. Reads at
/// most 64 KiB.
Source::Kind recognize(const std::filesystem::path& path);

}  // namespace tessera::data
