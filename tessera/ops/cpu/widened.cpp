// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/widened.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/matmul.h"

namespace tessera::ops::cpu {
namespace {

/// Number of features in a panel: enough for full speed of the product, few enough for the widened
/// panel to stay in the cache.
constexpr std::int64_t kPanel = 2048;
constexpr std::int64_t kMultiple = 64;

/// Calls fn(begin, end) over the output features in nearly equal panels.
template <class Fn>
void for_panels(std::int64_t features, const Fn& fn) {
  const std::int64_t panels = std::max<std::int64_t>(1, (features + kPanel - 1) / kPanel);
  const std::int64_t even = (features + panels - 1) / panels;
  const std::int64_t each = std::max(kMultiple, (even + kMultiple - 1) / kMultiple * kMultiple);
  for (std::int64_t begin = 0; begin < features; begin += each) {
    fn(begin, std::min(features, begin + each));
  }
}

/// A row-major fp32 copy.
at::Tensor widened(const at::Tensor& x) {
  return at::empty(x.sizes(), x.options().dtype(at::kFloat)).copy_(x);
}

/// c = a b + (accumulate ? c : 0) in fp32.
void multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate) {
  if (onednn_fp32()) {
    matmul(a, b, c, {.accumulate = accumulate});
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

}  // namespace

void widened_linear(const at::Tensor& x_NI,
                    const at::Tensor& weight_OI,
                    const at::Tensor& bias_O,
                    const at::Tensor& y_NO) {
  const at::Tensor x = widened(x_NI);
  for_panels(weight_OI.size(0), [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor weight = widened(weight_OI.slice(0, begin, end)).t();
    at::Tensor y = y_NO.slice(1, begin, end);
    const bool wide = y.scalar_type() == at::kFloat;
    const at::Tensor sums = wide ? y : at::empty(y.sizes(), x.options());
    if (bias_O.defined()) sums.copy_(bias_O.slice(0, begin, end).expand_as(sums));
    multiply(x, weight, sums, bias_O.defined());
    if (!wide) y.copy_(sums);
  });
}

at::Tensor widened_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  at::Tensor dx = at::empty({dy_NO.size(0), weight_OI.size(1)}, dy_NO.options().dtype(at::kFloat));
  for_panels(weight_OI.size(0), [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor dy = widened(dy_NO.slice(1, begin, end));
    const at::Tensor weight = widened(weight_OI.slice(0, begin, end));
    multiply(dy, weight, dx, begin > 0);
  });
  return dx;
}

void widened_weight_grad(const at::Tensor& dy_NO,
                         const at::Tensor& x_NI,
                         const at::Tensor& dw_OI,
                         bool accumulate,
                         float scale) {
  const at::Tensor x = scale == 1.0F ? widened(x_NI) : widened(x_NI).mul_(scale);
  for_panels(dy_NO.size(1), [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor dy = widened(dy_NO.slice(1, begin, end)).t();
    multiply(dy, x, dw_OI.slice(0, begin, end), accumulate);
  });
}

std::int64_t widened_floats(std::int64_t panelled, std::int64_t inner, std::int64_t other) {
  return std::min(panelled, kPanel + kMultiple) * inner + inner * other;
}

}  // namespace tessera::ops::cpu
