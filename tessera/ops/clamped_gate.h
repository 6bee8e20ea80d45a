// SPDX-License-Identifier: Apache-2.0
// Two gates of sparse feed-forward networks: the clamped activation of gpt_oss, and the gate of
// shared experts. On the CPU every element is computed on its own, so that a row has the same bits
// among any others.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// y[..., f] = (up + 1) * gate * sigmoid(1.702 gate) for x [..., 2 F], with gate = min(x[..., f],
/// limit) and up = x[..., F + f] clamped to [-limit, limit]. Computed in fp32 and rounded to x's
/// dtype once. Works on meta. Source: OpenAI 2025, gpt-oss model card.
at::Tensor clamped_gate(const at::Tensor& x, double limit);
/// Returns both halves of dx.
at::Tensor clamped_gate_backward(const at::Tensor& dy, const at::Tensor& x, double limit);

/// y[..., c] = x[..., c] * sigmoid(gate[..., 0]), for x [..., C] and gate [..., 1] of one dtype.
at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate);
/// Returns dx and dgate.
std::pair<at::Tensor, at::Tensor> sigmoid_gate_backward(const at::Tensor& dy,
                                                        const at::Tensor& x,
                                                        const at::Tensor& gate);

}  // namespace tessera::ops
