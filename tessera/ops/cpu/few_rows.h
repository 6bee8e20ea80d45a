// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a matrix, which dominate generation token by token. All threads
// together read the matrix once, whatever the number of rows; fp32 sums are computed in an order
// that depends only on the inner size. Legend: N rows, I in, O out features.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/experts_linear.h"

namespace tessera::ops::cpu {

/// True if few_rows_linear() should compute this product. Depends only on shapes and dtypes; always
/// false with the portable kernels, whose sums are slower than a library's.
bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight_OI);
/// y = (x weight_OI^T) * scales_O + bias_O, computed in fp32 and rounded once: x [..., I], y [...,
/// O]. weight: row-major fp32, bf16, fp16 or int8; scales and bias may be undefined.
at::Tensor few_rows_linear(const at::Tensor& x,
                           const at::Tensor& weight_OI,
                           const at::Tensor& scales_O,
                           const at::Tensor& bias_O,
                           at::ScalarType out_dtype);

/// few_rows_fit() for the rows of each expert and its matrix. weight [E, O, I].
bool few_rows_of_experts_fit(const at::Tensor& x_QI,
                             const at::Tensor& weight_EOI,
                             const std::vector<RowsOfExpert>& units);
/// few_rows_linear() of each expert's rows, all at once.
at::Tensor few_rows_of_experts(const at::Tensor& x_QI,
                               const ExpertMatrices& matrices,
                               const std::vector<RowsOfExpert>& units);

/// few_rows_linear() for any number of rows, with the same bits of each row as alone, and any
/// variant of the kernels. The weight may have any strides and any float dtype.
at::Tensor linear_by_rows(const at::Tensor& x,
                          const at::Tensor& weight_OI,
                          const at::Tensor& bias_O,
                          at::ScalarType out_dtype);
/// Bytes that linear_by_rows() needs besides its arguments and its result. The tensors may be on
/// meta.
std::int64_t linear_by_rows_scratch(const at::Tensor& x,
                                    const at::Tensor& weight_OI,
                                    at::ScalarType out_dtype);

}  // namespace tessera::ops::cpu
