// SPDX-License-Identifier: Apache-2.0
// Reads a file of texts, one per line.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// The texts of a file: for a .jsonl the member `field` of each line, for any other file the lines,
/// in UTF-8. Throws Error{Data} with file and line.
std::vector<std::string> read_text_lines(const std::string& file, const std::string& field);

}  // namespace tessera::cli
