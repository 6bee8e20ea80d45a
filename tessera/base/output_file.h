// SPDX-License-Identifier: Apache-2.0
// A file that a command writes, and that keeps its former contents until the first write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace tessera {

/// Appends to a file. open() checks that the file can be written and does not change it: a command
/// that is refused later leaves an existing file as it was. The first write removes all that is
/// behind the bytes to keep. Every error is Error{Io}. Threads: one at a time.
class OutputFile {
 public:
  /// Creates the file if it does not exist. `kept`: the number of its first bytes to keep; 0: it is
  /// replaced.
  void open(const std::filesystem::path& path, std::uintmax_t kept = 0);
  /// Removes all behind the bytes to keep, as the first write would.
  void replace();
  void write(std::string_view bytes);
  void flush();
  /// Writes what is buffered, and removes what open() did not keep even if nothing was written.
  void close();

 private:
  void check();

  std::filesystem::path path_;
  std::uintmax_t kept_ = 0;
  bool replaced_ = false;
  std::ofstream file_;
};

}  // namespace tessera
