// SPDX-License-Identifier: Apache-2.0
// A sum over a table of which few rows differ from zero, as the gradient of looked-up rows is.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Holds the rows that something was added to, in the order of their first time, in fp32. An
/// element has the bits of a dense sum that began with zeros. Memory: of these rows up to twice,
/// three times while they grow; Tag::Gradients. Threads: one at a time.
class RowSum {
 public:
  /// Of a table with rows of `width` elements.
  explicit RowSum(std::int64_t width) : width_(width) {}

  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }
  /// [rows().size(), width]: theirs, to add to. Valid until there is a new row.
  [[nodiscard]] at::Tensor values() const;

  /// The values of a row; one that is new has zeros.
  [[nodiscard]] float* row(std::int64_t row) { return values_of(place(row)); }
  /// An element of the table, with those behind it in its row.
  [[nodiscard]] float* at(std::int64_t element) { return row(element / width_) + element % width_; }
  /// Where `rows_N` (int64) stand in values(), [N]. Cost: O(N), and a copy where values() grow.
  [[nodiscard]] at::Tensor places(const at::Tensor& rows_N);

  /// Row by row, each element once.
  void add(const RowSum& other);
  /// flat[i] += element first + i of the table, for the elements that are there; `flat`: contiguous
  /// fp32. On all threads.
  void add_to(const at::Tensor& flat, std::int64_t first) const;

 private:
  std::int64_t place(std::int64_t row);
  [[nodiscard]] float* values_of(std::int64_t place) const;

  std::int64_t width_;
  std::unordered_map<std::int64_t, std::int64_t> places_;
  std::vector<std::int64_t> rows_;
  at::Tensor values_;  // [room, width], zeros beyond rows_
};

}  // namespace tessera
