// SPDX-License-Identifier: Apache-2.0
// Reads a file of texts, or of pairs of texts, one per line.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// The texts of a file: for a .jsonl the member `field` of each line, for any other file the lines,
/// in UTF-8. Throws Error{Data} with file and line.
std::vector<std::string> read_text_lines(const std::string& file, const std::string& field);

/// Two members of a line: a text, and the text that answers it.
struct LinePair {
  std::string source, target;
};
/// The pairs of a .jsonl file: of each line the first member that exists of `sources`, and of
/// `targets`. Throws Error{Data} with file and line, and Error{Config} for a file of another kind.
std::vector<LinePair> read_line_pairs(const std::string& file,
                                      const std::vector<std::string>& sources,
                                      const std::vector<std::string>& targets);

}  // namespace tessera::cli
