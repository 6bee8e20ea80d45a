// SPDX-License-Identifier: Apache-2.0
// Lines of standard input. On a terminal they are edited with readline's keys, and the arrows
// recall earlier lines.
#pragma once

#include <optional>
#include <string>

namespace tessera::cli {

/// Threads: one. The lines of a terminal are remembered until the program ends.
class LineReader {
 public:
  /// `prompt` is written before each line, only on a terminal.
  explicit LineReader(std::string prompt);
  /// Returns the next line without its end; nothing at the end of the input.
  [[nodiscard]] std::optional<std::string> next();

 private:
  std::string prompt_;
  bool edits_;
};

}  // namespace tessera::cli
