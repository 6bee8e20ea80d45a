// SPDX-License-Identifier: Apache-2.0
// What a file holds, by its first bytes.
#pragma once

#include <filesystem>

#include "tessera/data/sources.h"

namespace tessera::data {

/// Whether a file is one document of text or has a JSON object on each line. A name that ends in
/// .txt or .jsonl decides, unless the contents are plainly something else. Error{Data} for what is
/// not read as text (parquet, arrow, compressed files, archives, pictures, JSON arrays, tables,
/// other binary data), with the command that converts it. Reads at most 64 KiB.
Source::Kind recognize(const std::filesystem::path& path);

}  // namespace tessera::data
