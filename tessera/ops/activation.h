// SPDX-License-Identifier: Apache-2.0
// Pointwise activations by name, and gated activations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/activation_kind.h"

namespace tessera::ops {

/// "gelu_tanh" (also Hugging Face's "gelu_new"), "gelu", "relu", "silu", "quick_gelu" (x * sigmoid
/// of 1.702 x), "relu2" (relu(x)^2). Throws Error{Config} with the nearest name.
Activation activation_from_name(std::string_view name);
std::vector<std::string> activation_names();

/// The result has x's dtype and is computed in fp32. Works on meta.
at::Tensor activate(const at::Tensor& x, Activation activation);
at::Tensor activate_backward(const at::Tensor& dy, const at::Tensor& x, Activation activation);

/// y[..., f] = activation(x[..., f]) * x[..., F + f] for x [..., 2 F]; the result has x's dtype, is
/// computed in fp32 and rounded once: SwiGLU with silu, GEGLU with gelu. Works on meta. Source:
/// Shazeer 2020, "GLU variants improve transformer".
at::Tensor gated(const at::Tensor& x, Activation activation);
/// Returns both halves of dx.
at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Activation activation);

}  // namespace tessera::ops
