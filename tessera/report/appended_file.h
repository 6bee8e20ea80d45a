// SPDX-License-Identifier: Apache-2.0
// A file that is only appended to.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::report {

/// Appends to a file; creates it and its folder if necessary. Throws Error{Io} with the path and
/// the reason. Bytes that append() and flush() have written survive the end of the process.
/// Threads: one at a time.
class AppendedFile {
 public:
  explicit AppendedFile(std::filesystem::path path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  /// Writes the bytes that append_soon() has kept, and then `bytes`.
  void append(std::string_view bytes);
  /// Keeps `bytes` in memory and writes them together with others, at most a second later if more
  /// is appended by then: a system call for each number would slow down short steps.
  void append_soon(std::string_view bytes);
  /// Writes the bytes that append_soon() has kept. The destructor does so too, and hides an error.
  void flush();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void write(std::string_view bytes);
  std::filesystem::path path_;
  int fd_ = -1;
  std::string kept_;
  double written_ = 0;  ///< time of the last write
};

}  // namespace tessera::report
