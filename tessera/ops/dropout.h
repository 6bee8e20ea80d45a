// SPDX-License-Identifier: Apache-2.0
// Dropout from counters: a mask is a function of (seed, site, sample, element), never of layout or
// order.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// One dropout of one block: which random bits it draws. Row b of a tensor belongs to
/// sample_ids[b], the number of the sample in the whole run (samples consumed before it), so that a
/// mask never repeats and no layout changes it.
struct DropoutKey {
  double p = 0.0;                        ///< probability of zero
  std::uint64_t key = 0;                 ///< seed and site mixed
  std::vector<std::int64_t> sample_ids;  ///< one for each index of dim 0
  std::int64_t element_offset = 0;       ///< of this tensor's first element in the sample
  /// The sample lies in equal parts on several ranks, and the tensor holds these, one after the
  /// other; empty: all of it.
  std::vector<std::int64_t> parts = {};
  /// The last dim lies in `columns` equal parts on several ranks, and the tensor holds part
  /// `column` of it.
  std::int64_t column = 0, columns = 1;
  [[nodiscard]] bool active() const { return p > 0.0; }
};
/// Error{Shape} unless `key` has one sample for each x[b], Error{Config} for p above 1.
void check_dropout(const at::Tensor& x, const DropoutKey& key);

/// mask * x / (1 - p), x of [B, ...]; element e of sample s uses word e % 4 of Philox(key)(e / 4,
/// s). The same call on the gradient is the backward. Works on meta.
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key);

/// Error{Shape} unless shapes and dtypes are equal.
void check_residual(const at::Tensor& x, const at::Tensor& branch);

/// x + dropout(branch), of equal shapes and dtype, in one pass and rounded once: what a residual
/// stream takes up. Its backward is the gradient itself and dropout() of it. Works on meta.
at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const DropoutKey& key);

/// Neighbours [begin, end).
struct Run {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Run&) const = default;
};
/// What a tensor [B, M, R, C] holds of each sample's matrices. Kernels that make it piece by piece
/// draw its part of dropout() of the whole (cpu/dropout_rows.h).
struct DropoutWindow {
  std::int64_t first_matrix = 0;       ///< of M
  std::int64_t rows = 0, columns = 0;  ///< of a whole matrix
  std::vector<Run> row_runs, column_runs;
};
}  // namespace tessera::ops
