// SPDX-License-Identifier: Apache-2.0
// A matrix of fp32 as NumPy's .npy, written row by row.  Source: NumPy's NEP 1, version 1.0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>

namespace tessera::interop {

class NpyWriter {
 public:
  /// Error{Io} where `path` cannot be written; what is there is replaced.
  NpyWriter(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns);
  /// The next row, of `columns` values.
  void add(std::span<const float> row);
  /// Flushes. Error{Io} where not all rows are on the disk.
  void close();

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::int64_t rows_, columns_, written_ = 0;
};

}  // namespace tessera::interop
