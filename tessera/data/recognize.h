// SPDX-License-Identifier: Apache-2.0
// Recognizes the contents of a file by its first bytes.
#pragma once

#include <filesystem>

#include "tessera/data/sources.h"

namespace tessera::data {

/// Returns whether a file is one document of text, has a JSON object on each line, or has records
/// (parquet, arrow, a JSON array, a table that its name calls .csv or .tsv); text and lines also if
/// they are compressed with gzip or zstd. A name that ends in .txt or .jsonl decides, unless the
/// contents are clearly something else. Throws Error{Data} for files that are not read (other
/// archives, pictures, other binary data), with the command that converts them. Reads at most 64
/// KiB; decompresses a file whose name does not say what it is.
Source recognize(const std::filesystem::path& path);

}  // namespace tessera::data
