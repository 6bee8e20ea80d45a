// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/activation.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

constexpr double kQuick = 1.702;

// Computed in fp64, because libtorch's fp32 gelu loses its last digits to cancellation for large
// negative x.
at::Tensor value_of(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::GeluTanh:
      return at::gelu(x, "tanh");
    case Activation::Gelu:
      return at::gelu(x, "none");
    case Activation::Relu:
      return at::relu(x);
    case Activation::QuickGelu:
      return x * at::sigmoid(kQuick * x);
    case Activation::SquaredRelu:
      return at::relu(x).square();
    case Activation::Silu:
      break;
  }
  return at::silu(x);
}

/// dy times the derivative at x.
at::Tensor gradient_of(const at::Tensor& dy, const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::GeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case Activation::Gelu:
      return at::gelu_backward(dy, x, "none");
    case Activation::Relu:
      return at::threshold_backward(dy, x, 0.0);
    case Activation::QuickGelu:
      return at::silu_backward(dy, kQuick * x);
    case Activation::SquaredRelu:
      return dy * 2 * at::relu(x);
    case Activation::Silu:
      break;
  }
  return at::silu_backward(dy, x);
}

}  // namespace

void AtenBackend::activate(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  y.copy_(value_of(x.to(at::kDouble), activation));
}

void AtenBackend::activate_backward(const at::Tensor& dy,
                                    const at::Tensor& x,
                                    Activation activation,
                                    const at::Tensor& dx) const {
  const at::Tensor d = dy.reshape(x.sizes()).to(at::kDouble);
  dx.copy_(gradient_of(d, x.to(at::kDouble), activation));
}

void AtenBackend::gated(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  const std::vector<at::Tensor> halves = x.to(at::kDouble).chunk(2, -1);
  y.copy_(value_of(halves[0], activation) * halves[1]);
}

void AtenBackend::gated_backward(const at::Tensor& dy,
                                 const at::Tensor& x,
                                 Activation activation,
                                 const at::Tensor& dx) const {
  const std::vector<at::Tensor> halves = x.to(at::kDouble).chunk(2, -1), to = dx.chunk(2, -1);
  const at::Tensor d = dy.reshape(halves[0].sizes()).to(at::kDouble);
  to[0].copy_(gradient_of(d * halves[1], halves[0], activation));
  to[1].copy_(d * value_of(halves[0], activation));
}

}  // namespace tessera::ops::aten
