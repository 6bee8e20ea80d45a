// SPDX-License-Identifier: Apache-2.0
// A file that is only appended to.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::report {

/// Appends to a file; creates it and its folder if necessary. Throws Error{Io} with the path and
/// the reason. Every write reaches the kernel, so that written data survives the end of the
/// process.
class AppendedFile {
 public:
  explicit AppendedFile(std::filesystem::path path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  void append(std::string_view bytes) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tessera::report
