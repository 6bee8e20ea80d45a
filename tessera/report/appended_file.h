// SPDX-License-Identifier: Apache-2.0
// A file that grows at its end.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::report {

/// Appends to a file, creating it and its folder if need be. Error{Io} with the path and the
/// reason. Every write reaches the kernel, so that what was written survives the end of the
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
