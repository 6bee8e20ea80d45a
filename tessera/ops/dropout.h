// SPDX-License-Identifier: Apache-2.0
// Counter-based dropout: a mask is a function of (seed, site, sample, element), never of layout or
// order.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// The key of a block's dropout, which determines its random bits. Row b of a tensor belongs to
/// sample_ids[b], the number of the sample in the whole run (samples consumed before it), so that a
/// mask never repeats and does not depend on the layout.
struct DropoutKey {
  double p = 0.0;                        ///< probability of zero
  std::uint64_t key = 0;                 ///< mixture of seed and site
  std::vector<std::int64_t> sample_ids;  ///< one per index of dim 0
  std::int64_t element_offset = 0;       ///< position of this tensor's first element in the sample
  /// Equal parts of the sample are distributed over several ranks, and the tensor holds the parts
  /// listed here, one after the other; empty: the whole sample.
  std::vector<std::int64_t> parts = {};
  /// The last dim is distributed in `columns` equal parts over several ranks, and the tensor holds
  /// part `column`.
  std::int64_t column = 0, columns = 1;
  [[nodiscard]] bool active() const { return p > 0.0; }
};
/// Throws Error{Shape} unless `key` has one sample per x[b], and Error{Config} for p above 1.
void check_dropout(const at::Tensor& x, const DropoutKey& key);

/// mask * x / (1 - p) for x [B, ...]; element e of sample s uses word e % 4 of Philox(key)(e / 4,
/// s). The same call on the gradient is the backward. Works on meta.
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key);

/// Throws Error{Shape} unless shapes and dtypes are equal.
void check_residual(const at::Tensor& x, const at::Tensor& branch);

/// x + dropout(branch), of equal shapes and dtype, in one pass and rounded once, for a residual
/// stream. Its backward is the gradient itself and dropout() of it. Works on meta.
at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const DropoutKey& key);

/// The indices [begin, end).
struct Run {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Run&) const = default;
};
/// The part of each sample's matrices that a tensor [B, M, R, C] holds. Kernels that compute it
/// piece by piece draw its part of dropout() of the whole (cpu/dropout_rows.h).
struct DropoutWindow {
  std::int64_t first_matrix = 0;       ///< the first of the M matrices
  std::int64_t rows = 0, columns = 0;  ///< of a whole matrix
  std::vector<Run> row_runs, column_runs;
};
}  // namespace tessera::ops
