// SPDX-License-Identifier: Apache-2.0
// The matrix products of a linear layer. Legend: N rows (all leading dims), I in, O out features.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// y_NO = x_NI weight_OI^T + bias_O. x and weight have the same dtype (fp32, bf16 or fp16),
/// products are accumulated in fp32, and y has x's dtype (or `out_dtype`). If the CPU has no such
/// products, operands are widened to fp32 and y is rounded once: the rounding points are the same.
/// Cost: 2 N I O operations. Works on meta. Can be called from any thread; no autograd.
at::Tensor linear(const at::Tensor& x_NI,
                  const at::Tensor& weight_OI,
                  const at::Tensor& bias_O = {},
                  std::optional<at::ScalarType> out_dtype = std::nullopt);
/// True if linear() computes an fp32 result from operands of that dtype as fast as a result of
/// their dtype.
bool products_to_fp32(at::ScalarType dtype, at::Device device = at::kCPU);
/// dx_NI = dy_NO weight_OI, in dy's dtype (fp32 accumulation).
at::Tensor linear_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI);
/// Writes (or adds, if `accumulate`) scale * dy_NO^T x_NI to the fp32 tensor dw_OI.
void linear_weight_grad(const at::Tensor& dy_NO,
                        const at::Tensor& x_NI,
                        const at::Tensor& dw_OI,
                        bool accumulate,
                        float scale = 1.0F);
/// Writes (or adds) the column sums of dy_NO to the fp32 tensor db_O, accumulated in fp32 or better
/// in row order.
void linear_bias_grad(const at::Tensor& dy_NO, const at::Tensor& db_O, bool accumulate);

}  // namespace tessera::ops
