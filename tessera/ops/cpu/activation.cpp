// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/activation.h"

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

constexpr std::int64_t kActivationGrain = 16384;

}  // namespace

void CpuBackend::activate(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  const at::Tensor from = x.contiguous();
  const auto kernel = kernels().activate[float_of(x)];
  parallel(x.numel(), kActivationGrain, [&](std::int64_t begin, std::int64_t end) {
    kernel(from.data_ptr(), y.data_ptr(), static_cast<int>(activation), begin, end);
  });
}

void CpuBackend::activate_backward(const at::Tensor& dy,
                                   const at::Tensor& x,
                                   Activation activation,
                                   const at::Tensor& dx) const {
  const at::Tensor gradient = dy.to(x.scalar_type()).contiguous(), from = x.contiguous();
  const auto kernel = kernels().activate_grad[float_of(x)];
  parallel(x.numel(), kActivationGrain, [&](std::int64_t begin, std::int64_t end) {
    kernel(gradient.data_ptr(),
           from.data_ptr(),
           dx.data_ptr(),
           static_cast<int>(activation),
           begin,
           end);
  });
}

void CpuBackend::gated(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  const std::int64_t F = x.size(-1) / 2, N = x.numel() / (2 * F);
  const at::Tensor from = x.contiguous();
  const auto kernel = kernels().gated[float_of(x)];
  parallel(N, kActivationGrain / (2 * F), [&](std::int64_t begin, std::int64_t end) {
    kernel(from.data_ptr(), y.data_ptr(), F, static_cast<int>(activation), begin, end);
  });
}

void CpuBackend::gated_backward(const at::Tensor& dy,
                                const at::Tensor& x,
                                Activation activation,
                                const at::Tensor& dx) const {
  const std::int64_t F = x.size(-1) / 2, N = x.numel() / (2 * F);
  const at::Tensor gradient = dy.to(x.scalar_type()).contiguous(), from = x.contiguous();
  const auto kernel = kernels().gated_grad[float_of(x)];
  parallel(N, kActivationGrain / (2 * F), [&](std::int64_t begin, std::int64_t end) {
    kernel(gradient.data_ptr(),
           from.data_ptr(),
           dx.data_ptr(),
           F,
           static_cast<int>(activation),
           begin,
           end);
  });
}

}  // namespace tessera::ops::cpu
