// SPDX-License-Identifier: Apache-2.0
// A file of texts, one on each line.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// The texts of a file: of a .jsonl the member `field` of each line, of another file the lines, in
/// UTF-8. Error{Data} names file and line.
std::vector<std::string> read_text_lines(const std::string& file, const std::string& field);

}  // namespace tessera::cli
