// SPDX-License-Identifier: Apache-2.0
// A few rows times a matrix: what making text one token at a time consists of. The matrix is read
// once, by all threads, whatever the number of rows; sums are made in fp32 in an order that depends
// on the inner size alone. Legend: N rows, I in, O out features.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// Whether few_rows_linear() is the way to make the product of these: by shapes and dtypes alone,
/// and never with the portable kernels, whose sums are slower than a library's.
bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight_OI);
/// y = (x weight_OI^T) * scales_O + bias_O, made in fp32 and rounded once: x [..., I], y [..., O].
/// weight: row-major fp32, bf16, fp16 or int8; scales and bias may be undefined.
at::Tensor few_rows_linear(const at::Tensor& x,
                           const at::Tensor& weight_OI,
                           const at::Tensor& scales_O,
                           const at::Tensor& bias_O,
                           at::ScalarType out_dtype);

}  // namespace tessera::ops::cpu
