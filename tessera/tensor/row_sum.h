// SPDX-License-Identifier: Apache-2.0
// A sum over a table of which few rows differ from zero, such as the gradient of an embedding
// lookup.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Holds the rows to which something was added, in the order of first use, in fp32. An element has
/// the bits of a dense sum that began with zeros. Memory: up to twice the size of these rows, three
/// times while they grow; Tag::Gradients. Threads: one at a time.
class RowSum {
 public:
  /// `width`: the elements of a row of the table.
  explicit RowSum(std::int64_t width) : width_(width) {}

  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }
  /// [rows().size(), width]: the values of the rows, which may be added to. Valid until a new row
  /// is added.
  [[nodiscard]] at::Tensor values() const;

  /// Returns the values of a row; a new row is added with zeros.
  [[nodiscard]] float* row(std::int64_t row) { return values_of(place(row)); }
  /// Returns an element of the table, followed by the rest of its row.
  [[nodiscard]] float* at(std::int64_t element) { return row(element / width_) + element % width_; }
  /// Returns the positions of `rows_N` (int64) in values(), [N]. Cost: O(N), and a copy if values()
  /// grow.
  [[nodiscard]] at::Tensor places(const at::Tensor& rows_N);

  /// Adds another sum row by row, each element once.
  void add(const RowSum& other);
  /// Computes flat[i] += element first + i of the table, for the stored elements; `flat`:
  /// contiguous fp32. Runs on all threads.
  void add_to(const at::Tensor& flat, std::int64_t first) const;

 private:
  std::int64_t place(std::int64_t row);
  [[nodiscard]] float* values_of(std::int64_t place) const;

  std::int64_t width_;
  std::unordered_map<std::int64_t, std::int64_t> places_;
  std::vector<std::int64_t> rows_;
  at::Tensor values_;  // [capacity, width], zeros beyond rows_
};

}  // namespace tessera
