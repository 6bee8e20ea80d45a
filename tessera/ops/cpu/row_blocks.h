// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of a matrix whose bits do not depend on the number of threads: rows are
// divided into blocks by their number only, each block adds its rows in order, and the blocks are
// reduced in order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::ops::cpu {

struct RowBlocks {
  static constexpr std::int64_t kMostBlocks = 64;
  static constexpr std::int64_t kLeastRows = 16;
  std::int64_t rows;
  [[nodiscard]] std::int64_t rows_each() const {
    return std::max(kLeastRows, (rows + kMostBlocks - 1) / kMostBlocks);
  }
  [[nodiscard]] std::int64_t count() const { return (rows + rows_each() - 1) / rows_each(); }
  [[nodiscard]] std::int64_t begin(std::int64_t block) const { return block * rows_each(); }
  [[nodiscard]] std::int64_t end(std::int64_t block) const {
    return std::min(rows, (block + 1) * rows_each());
  }
};

/// to[c] = (accumulate ? to[c] : 0) + sum over blocks of partial[block * stride + c], added in fp64
/// in block order.
void reduce_blocks(const float* partial,
                   std::int64_t blocks,
                   std::int64_t stride,
                   std::int64_t columns,
                   bool accumulate,
                   float* to);

}  // namespace tessera::ops::cpu
