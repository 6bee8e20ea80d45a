// SPDX-License-Identifier: Apache-2.0
// Matrices of 8-bit integers with a scale per row, for models that are only read: a quarter of
// fp32's bytes, half of bf16's. Legend: N rows, I in, O out features.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// The value of element [o, i] is rows[o, i] * scales[o].
struct Int8Rows {
  at::Tensor rows_OI;   ///< int8 in -127 ... 127
  at::Tensor scales_O;  ///< fp32: the row's largest magnitude / 127; 0 for a row of zeros
};

/// The largest magnitude of each row, fp32. Throws Error{Numeric} for non-finite elements.
at::Tensor largest_of_rows(const at::Tensor& weight_OI);
/// Rounds each element to the nearest value; the error is at most half a scale. `largest_O`:
/// largest_of_rows() of the whole matrix, if this one has only a part of its columns; undefined:
/// that of this one. Throws Error{Numeric} for non-finite elements.
Int8Rows to_int8(const at::Tensor& weight_OI, const at::Tensor& largest_O = {});
/// Converts the matrix back to `dtype`.
at::Tensor from_int8(const Int8Rows& matrix, at::ScalarType dtype);
/// Writes the values to `out`: contiguous, fp32, bf16 or fp16.
void from_int8(const Int8Rows& matrix, const at::Tensor& out);
/// y_NO = x_NI matrix^T + bias_O in x's dtype (or `out_dtype`). For a few rows the product reads
/// the 8-bit values directly, with fp32 sums; for more rows, the matrix is first widened to x's
/// dtype.
at::Tensor linear_int8(const at::Tensor& x_NI,
                       const Int8Rows& matrix,
                       const at::Tensor& bias_O = {},
                       std::optional<at::ScalarType> out_dtype = std::nullopt);
/// Rows ids_N of the matrix, in `dtype`: [N, I].
at::Tensor embedding_int8(const Int8Rows& table, const at::Tensor& ids_N, at::ScalarType dtype);

}  // namespace tessera::ops
