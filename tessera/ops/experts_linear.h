// SPDX-License-Identifier: Apache-2.0
// The products of a few rows with the matrices of several experts, as one operation: generation has
// one row or a few for each of several experts, and a call for each would take a good part of the
// time. Legend: Q rows, E experts, I in, O out features.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// Rows [begin, begin + rows) use matrix `expert`.
struct RowsOfExpert {
  std::int64_t expert = 0, begin = 0, rows = 0;
};
/// The matrices of all experts.
struct ExpertMatrices {
  at::Tensor weight_EOI;  ///< x's dtype, or int8 with scales
  at::Tensor scales_EO;   ///< fp32 as in Int8Rows, or undefined
  at::Tensor bias_EO;     ///< or undefined
};

/// y [Q, O] in x's dtype: bit by bit what linear() or linear_int8() gives for the rows of each
/// expert alone. Undefined if they should be called one after the other: on other devices than the
/// CPU, with other kernels than tessera's, while calls are recorded, or if an expert has more than
/// a few rows. `units` cover all rows of x [Q, I]. All threads divide the outputs of all experts.
at::Tensor linear_of_experts(const at::Tensor& x_QI,
                             const ExpertMatrices& matrices,
                             const std::vector<RowsOfExpert>& units);

}  // namespace tessera::ops
