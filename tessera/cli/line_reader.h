// SPDX-License-Identifier: Apache-2.0
// Lines of standard input. On a terminal they are edited with the keys of readline, and earlier
// ones come back with the arrows.
#pragma once

#include <optional>
#include <string>

namespace tessera::cli {

/// Threads: one. The lines of a terminal are remembered until the program ends.
class LineReader {
 public:
  /// `prompt` is written before each line on a terminal, and nowhere else.
  explicit LineReader(std::string prompt);
  /// The next line without its end; absent at the end of the input.
  [[nodiscard]] std::optional<std::string> next();

 private:
  std::string prompt_;
  bool edits_;
};

}  // namespace tessera::cli
