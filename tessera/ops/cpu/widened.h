// SPDX-License-Identifier: Apache-2.0
// Products of bf16 or fp16 matrices on a CPU that multiplies only fp32. Operands are widened in
// panels of output features, so that a large table (the vocabulary) or its gradient never exists in
// fp32 as a whole. Legend: N rows, I in, O out features.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// y_NO = x_NI weight_OI^T + bias_O, rounded once if y is not fp32. bias_O may be undefined.
void widened_linear(const at::Tensor& x_NI,
                    const at::Tensor& weight_OI,
                    const at::Tensor& bias_O,
                    const at::Tensor& y_NO);
/// dy_NO weight_OI, fp32: the panels are added in order.
at::Tensor widened_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI);
/// dw_OI = scale * dy_NO^T x_NI + (accumulate ? dw_OI : 0), fp32.
void widened_weight_grad(const at::Tensor& dy_NO,
                         const at::Tensor& x_NI,
                         const at::Tensor& dw_OI,
                         bool accumulate,
                         float scale);
/// Number of floats for the widened operands of any of these: a panel of `panelled` features with
/// `inner` values each, and the whole other operand of `inner` x `other` values.
std::int64_t widened_floats(std::int64_t panelled, std::int64_t inner, std::int64_t other);

}  // namespace tessera::ops::cpu
