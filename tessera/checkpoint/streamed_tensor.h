// SPDX-License-Identifier: Apache-2.0
// A tensor that is produced in pieces while it is written, so that no tensor is held whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::checkpoint {

/// A tensor whose elements are made when they are asked for, front to back.
struct StreamedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  /// Fills elements [begin, end), row-major, as `dtype`.
  std::function<void(std::int64_t begin, std::int64_t end, std::byte* out)> read;
  std::vector<std::string> aliases;  ///< other names of the same tensor (tied weights)
  /// Frees the memory of the data that was read; it is read again on demand; empty
  /// where nothing stays.
  std::function<void()> release;
  [[nodiscard]] std::uint64_t bytes() const;
};

/// Told after each piece: the bytes that were written since the last call.
using Written = std::function<void(std::uint64_t bytes)>;

}  // namespace tessera::checkpoint
