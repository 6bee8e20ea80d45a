// SPDX-License-Identifier: Apache-2.0
// Arithmetic of pieces (box, range): which elements two of them share, and whether a set of them
// tiles a tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/shard_spec.h"

namespace tessera::checkpoint {

using Shape = std::vector<std::int64_t>;

/// "[0:4, 8:16]", "[]" for a scalar.
std::string box_text(const mesh::Box& box);

/// What is wrong with a piece of a tensor of `shape`: dims, bounds, range; nothing if it lies
/// inside and is not empty.
std::optional<std::string> misplaced(const Shape& shape, const mesh::Piece& piece);

/// What is wrong if `pieces` (each in place) do not hold every element of a tensor of `shape`
/// exactly once. Cost: k log k for k pieces that cut few boxes into ranges; k^2 in the number of
/// boxes that differ.
std::optional<std::string> uncovered(const Shape& shape, std::span<const mesh::Piece> pieces);

/// What is wrong if two of `pieces` (each in place) hold the same element.
std::optional<std::string> repeated(std::span<const mesh::Piece> pieces);

/// Row-major index, in the whole tensor, of a piece's first element.
std::int64_t first_index(const Shape& shape, const mesh::Piece& piece);

/// Elements that two pieces of one tensor share, as runs that lie contiguous in both. Offsets count
/// elements from the first of each piece and ascend. Visits nothing but the runs: a contiguous
/// overlap is one run whatever its size.
class SharedRuns {
 public:
  SharedRuns(const mesh::Piece& a, const mesh::Piece& b);

  struct Run {
    std::int64_t a, b, count;
  };
  /// The next run, or nothing.
  std::optional<Run> next();

 private:
  [[nodiscard]] Run row(std::int64_t index) const;
  void skip_to_first();

  struct Dim {
    std::int64_t size, stride_a, stride_b;
  };
  std::int64_t begin_a_, end_a_, begin_b_, end_b_;
  std::vector<Dim> outer_;                ///< dims that are walked, outermost first
  std::int64_t base_a_ = 0, base_b_ = 0;  ///< offsets of the first row in the boxes
  std::int64_t length_ = 0;               ///< elements of a row
  std::int64_t rows_ = 0, at_ = 0;
};

inline bool touch(const mesh::Piece& a, const mesh::Piece& b) {
  return SharedRuns(a, b).next().has_value();
}

}  // namespace tessera::checkpoint
