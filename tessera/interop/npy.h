// SPDX-License-Identifier: Apache-2.0
// Writes an fp32 matrix as NumPy's .npy, row by row. Source: NumPy's NEP 1, version 1.0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tessera/base/output_file.h"

namespace tessera::interop {

class NpyWriter {
 public:
  /// Replaces an existing file, with the first row. Throws Error{Io} if `path` cannot be written.
  NpyWriter(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns);
  /// Writes the next row of `columns` values.
  void add(std::span<const float> row);
  /// Flushes. Throws Error{Io} if not all rows were written.
  void close();

 private:
  OutputFile file_;
  std::string header_;  ///< until it is written
  std::int64_t rows_, columns_, written_ = 0;
};

}  // namespace tessera::interop
