// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/clamped_gate.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr float kAlpha = 1.702F;
constexpr std::int64_t kGrain = 8;

OpWork work_of(const at::Tensor& x) {
  return {.bytes = 1.5 * static_cast<double>(x.nbytes()), .shape = shape(x)};
}

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

/// The rows of x [..., C] on the CPU, in fp32 or narrower.
std::int64_t rows_of(const at::Tensor& x) {
  return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

/// Tensors of other devices are computed by the CPU.
at::Tensor at_home(const at::Tensor& x) {
  return x.to(at::kCPU).contiguous();
}

struct Gate {
  float gate, up, share;  ///< share: sigmoid(alpha gate)
};
Gate gate_of(float gate, float up, float limit) {
  const float g = std::min(gate, limit);
  return {g, std::clamp(up, -limit, limit), sigmoid(kAlpha * g)};
}

}  // namespace

at::Tensor clamped_gate(const at::Tensor& x, double limit) {
  const OpScope scope("clamped gate", [&] { return work_of(x); });
  const std::int64_t F = x.size(-1) / 2, N = rows_of(x);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = F;
  if (x.is_meta()) return at::empty(sizes, x.options());
  const at::Tensor from = at_home(x), out = at::empty(sizes, from.options());
  const auto most = static_cast<float>(limit);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "clamped_gate", [&] {
    const auto* const in = from.const_data_ptr<scalar_t>();
    auto* const to = out.data_ptr<scalar_t>();
    at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * F; i < end * F; ++i) {
        const auto* const row = in + i / F * 2 * F + i % F;
        const Gate of = gate_of(static_cast<float>(row[0]), static_cast<float>(row[F]), most);
        to[i] = static_cast<scalar_t>((of.up + 1.0F) * (of.gate * of.share));
      }
    });
  });
  return out.to(x.device());
}

at::Tensor clamped_gate_backward(const at::Tensor& dy, const at::Tensor& x, double limit) {
  const OpScope scope("clamped gate dx", [&] { return work_of(x); });
  if (x.is_meta()) return at::empty_like(x);
  const std::int64_t F = x.size(-1) / 2, N = rows_of(x);
  const at::Tensor from = at_home(x), grad = at_home(dy), out = at::empty_like(from);
  const auto most = static_cast<float>(limit);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "clamped_gate", [&] {
    const auto *in = from.const_data_ptr<scalar_t>(), *d = grad.const_data_ptr<scalar_t>();
    auto* const to = out.data_ptr<scalar_t>();
    at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * F; i < end * F; ++i) {
        const std::int64_t place = i / F * 2 * F + i % F;
        const auto gate = static_cast<float>(in[place]), up = static_cast<float>(in[place + F]);
        const auto dy_i = static_cast<float>(d[i]);
        const Gate of = gate_of(gate, up, most);
        const float slope = of.share + of.gate * kAlpha * of.share * (1.0F - of.share);
        to[place] = static_cast<scalar_t>(gate <= most ? dy_i * (of.up + 1.0F) * slope : 0.0F);
        to[place + F] =
            static_cast<scalar_t>(std::abs(up) <= most ? dy_i * (of.gate * of.share) : 0.0F);
      }
    });
  });
  return out.to(x.device());
}

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate) {
  const OpScope scope("sigmoid gate", [&] { return work_of(x); });
  if (x.is_meta()) return at::empty_like(x);
  const std::int64_t C = x.size(-1), N = rows_of(x);
  const at::Tensor from = at_home(x), gates = at_home(gate), out = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "sigmoid_gate", [&] {
    const auto *in = from.const_data_ptr<scalar_t>(), *of = gates.const_data_ptr<scalar_t>();
    auto* const to = out.data_ptr<scalar_t>();
    at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float share = sigmoid(static_cast<float>(of[n]));
        for (std::int64_t i = n * C; i < (n + 1) * C; ++i)
          to[i] = static_cast<scalar_t>(static_cast<float>(in[i]) * share);
      }
    });
  });
  return out.to(x.device());
}

std::pair<at::Tensor, at::Tensor> sigmoid_gate_backward(const at::Tensor& dy,
                                                        const at::Tensor& x,
                                                        const at::Tensor& gate) {
  const OpScope scope("sigmoid gate dx", [&] { return work_of(x); });
  if (x.is_meta()) return {at::empty_like(x), at::empty_like(gate)};
  const std::int64_t C = x.size(-1), N = rows_of(x);
  const at::Tensor from = at_home(x), gates = at_home(gate), grad = at_home(dy),
                   dx = at::empty_like(from), dgate = at::empty_like(gates);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "sigmoid_gate", [&] {
    const auto *in = from.const_data_ptr<scalar_t>(), *of = gates.const_data_ptr<scalar_t>(),
               *d = grad.const_data_ptr<scalar_t>();
    auto *to = dx.data_ptr<scalar_t>(), *to_gate = dgate.data_ptr<scalar_t>();
    at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float share = sigmoid(static_cast<float>(of[n]));
        double product = 0.0;
        for (std::int64_t i = n * C; i < (n + 1) * C; ++i) {
          to[i] = static_cast<scalar_t>(static_cast<float>(d[i]) * share);
          product += static_cast<double>(d[i]) * static_cast<double>(in[i]);
        }
        to_gate[n] = static_cast<scalar_t>(product * static_cast<double>(share * (1.0F - share)));
      }
    });
  });
  return {dx.to(x.device()), dgate.to(x.device())};
}

}  // namespace tessera::ops
