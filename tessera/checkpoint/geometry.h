// SPDX-License-Identifier: Apache-2.0
// Arithmetic of pieces (box, range): which elements two of them share, and whether a set of them
// covers a tensor.
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

/// Returns "[0:4, 8:16]", or "[]" for a scalar.
std::string box_text(const mesh::Box& box);

/// Returns what is wrong with a piece of a tensor of `shape` (dims, bounds, range); nothing if it
/// is inside and not empty.
std::optional<std::string> misplaced(const Shape& shape, const mesh::Piece& piece);

/// Returns what is wrong unless `pieces` (each valid) hold every element of a tensor of `shape`
/// exactly once. Cost: k log k for k pieces with few distinct boxes; k^2 in the number of distinct
/// boxes.
std::optional<std::string> uncovered(const Shape& shape, std::span<const mesh::Piece> pieces);

/// Returns what is wrong if two of `pieces` (each valid) hold the same element.
std::optional<std::string> repeated(std::span<const mesh::Piece> pieces);

/// Returns the row-major index, in the whole tensor, of a piece's first element.
std::int64_t first_index(const Shape& shape, const mesh::Piece& piece);

/// Iterates over the elements that two pieces of one tensor share, as runs that are contiguous in
/// both. Offsets count elements from the first of each piece and ascend. Only runs are visited: a
/// contiguous overlap is one run regardless of its size.
class SharedRuns {
 public:
  SharedRuns(const mesh::Piece& a, const mesh::Piece& b);

  struct Run {
    std::int64_t a, b, count;
  };
  /// Returns the next run, or nothing.
  std::optional<Run> next();

 private:
  [[nodiscard]] Run row(std::int64_t index) const;
  void skip_to_first();

  struct Dim {
    std::int64_t size, stride_a, stride_b;
  };
  std::int64_t begin_a_, end_a_, begin_b_, end_b_;
  std::vector<Dim> outer_;                ///< dims that are iterated, outermost first
  std::int64_t base_a_ = 0, base_b_ = 0;  ///< offsets of the first row in the boxes
  std::int64_t length_ = 0;               ///< elements of a row
  std::int64_t rows_ = 0, at_ = 0;
};

inline bool touch(const mesh::Piece& a, const mesh::Piece& b) {
  return SharedRuns(a, b).next().has_value();
}

}  // namespace tessera::checkpoint
