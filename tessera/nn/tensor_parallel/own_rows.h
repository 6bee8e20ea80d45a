// SPDX-License-Identifier: Apache-2.0
// Tokens whose rows of a table this rank holds.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/tensor/param.h"

namespace tessera::nn {

struct OwnRows {
  at::Tensor rows_N;       ///< of this rank's part of the table; 0 for tokens of other ranks
  at::Tensor elsewhere_N;  ///< true for those
};
/// Error{Data} for a token that the whole table has no row for.
OwnRows own_rows(const at::Tensor& ids_N, const ParamInfo& table);

/// The gradient of a looked-up row, of the tokens that are here: [rows of them, C] and their rows.
struct RowGradients {
  at::Tensor dy_NC, rows_N;
};
/// On meta those of all tokens.
RowGradients gradients_of(const OwnRows& own, const at::Tensor& dy_NC);

}  // namespace tessera::nn
