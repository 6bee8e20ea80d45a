// SPDX-License-Identifier: Apache-2.0
// The tokens whose rows of a table this rank holds.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/tensor/param.h"

namespace tessera::nn {

struct OwnRows {
  /// Rows within this rank's part of the table; 0 for tokens of other ranks.
  at::Tensor rows_N;
  at::Tensor elsewhere_N;  ///< true for tokens of other ranks
  /// The tokens whose rows this rank holds, as indices, and their rows; undefined on meta.
  at::Tensor here_M, rows_here_M;
};
/// Throws Error{Data} for a token that is outside the whole table.
OwnRows own_rows(const at::Tensor& ids_N, const ParamInfo& table);

/// The gradients of looked-up rows for the tokens whose rows this rank holds: [number of them, C],
/// and the rows.
struct RowGradients {
  at::Tensor dy_NC, rows_N;
};
/// On meta tensors the result has all tokens.
RowGradients gradients_of(const OwnRows& own, const at::Tensor& dy_NC);

}  // namespace tessera::nn
