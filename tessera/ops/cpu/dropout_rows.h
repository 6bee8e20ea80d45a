// SPDX-License-Identifier: Apache-2.0
// Dropout piece by piece, for kernels that never hold the whole tensor. Include in .cpp files only.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ops/cpu/kernels.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops::cpu {

/// Applies dropout to consecutive elements of a sample. Keeps a reference to `key`.
class DropoutDraw {
 public:
  explicit DropoutDraw(const DropoutKey& key);
  /// to[i] = plus[i] + mask[i] * from[i] / (1 - p) for `count` elements, of which the first is
  /// element `first` of sample_ids[sample]. `plus`: nullptr for 0; `to` may be the same memory as
  /// either input.
  void operator()(Float type,
                  const void* from,
                  const void* plus,
                  void* to,
                  std::int64_t count,
                  std::int64_t sample,
                  std::int64_t first) const;

 private:
  const DropoutKey& key_;
  std::uint32_t limit_;
  float scale_;
};

/// Applies dropout to pieces of the rows of a window. Keeps a reference to `key`.
class DropoutRows {
 public:
  /// The beginning of a piece; all fields except the sample count within the window.
  struct Place {
    std::int64_t sample, matrix, row, column;
  };
  DropoutRows(const DropoutKey& key, const DropoutWindow& window);
  /// Computes `count` columns of a row of dropout() over all matrices with all their rows and
  /// columns. `key` is that of the whole; its `parts` are empty.
  void draw(Float type, const void* from, void* to, std::int64_t count, const Place& place) const;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(row_numbers_.size()); }
  [[nodiscard]] std::int64_t columns() const { return columns_; }

 private:
  DropoutDraw draw_;
  DropoutWindow window_;
  /// Number of each of the window's rows in the whole matrix.
  std::vector<std::int64_t> row_numbers_;
  std::int64_t columns_ = 0;  ///< columns of the window
};

}  // namespace tessera::ops::cpu
