// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/line_reader.h"

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include <editline/readline.h>
#include <unistd.h>

#include "tessera/base/text.h"

namespace tessera::cli {

LineReader::LineReader(std::string prompt)
    : prompt_(std::move(prompt)), edits_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  // Without this, a character of several bytes would be edited byte by byte.
  if (edits_) (void)std::setlocale(LC_CTYPE, "");
}

std::optional<std::string> LineReader::next() {
  std::string line;
  if (edits_) {
    (void)std::fflush(stdout);
    const std::unique_ptr<char, decltype(&std::free)> typed(readline(prompt_.c_str()), &std::free);
    if (!typed) return std::nullopt;
    line = typed.get();
    if (!text::trim(line).empty()) add_history(line.c_str());
  } else if (!std::getline(std::cin, line)) {
    return std::nullopt;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace tessera::cli
