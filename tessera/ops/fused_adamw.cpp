// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fused_adamw.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 16384;

cpu::AdamWRange range_of(const AdamWScalars& s) {
  const double t = static_cast<double>(s.step);
  const double correction1 = s.bias_correction ? 1.0 - std::pow(s.beta1, t) : 1.0;
  const double correction2 = s.bias_correction ? 1.0 - std::pow(s.beta2, t) : 1.0;
  cpu::AdamWRange range{};
  range.grad_scale = static_cast<float>(s.grad_scale);
  range.beta1 = static_cast<float>(s.beta1);
  range.one_minus_beta1 = static_cast<float>(1.0 - s.beta1);
  range.beta2 = static_cast<float>(s.beta2);
  range.one_minus_beta2 = static_cast<float>(1.0 - s.beta2);
  range.keep = s.decoupled ? static_cast<float>(1.0 - s.lr * s.weight_decay) : 1.0F;
  range.l2 = s.decoupled ? 0.0F : static_cast<float>(s.weight_decay);
  range.step_size = static_cast<float>(s.lr / correction1);
  range.inv_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  range.eps = static_cast<float>(s.eps);
  return range;
}

}  // namespace

void adamw(float* master,
           float* exp_avg,
           float* exp_avg_sq,
           const float* grad,
           std::uint16_t* working,
           DType working_dtype,
           std::int64_t numel,
           const AdamWScalars& scalars) {
  TESSERA_ASSERT(working == nullptr || working_dtype == DType::BF16 || working_dtype == DType::F16);
  // Three numbers read and written, the gradient read, working weights written.
  const OpScope scope("adamw", [&] {
    return OpWork{.bytes = static_cast<double>(numel) * (28.0 + (working == nullptr ? 0.0 : 2.0))};
  });
  cpu::AdamWRange range = range_of(scalars);
  range.master = master;
  range.exp_avg = exp_avg;
  range.exp_avg_sq = exp_avg_sq;
  range.grad = grad;
  range.working = working;
  range.working_type = working_dtype == DType::F16 ? cpu::kF16 : cpu::kBF16;
  const auto kernel = cpu::kernels().adamw;
  cpu::parallel(
      numel, kGrain, [&](std::int64_t begin, std::int64_t end) { kernel(range, begin, end); });
}

void chunk_square_sums(const float* grad, std::int64_t numel, std::int64_t chunk, double* sums) {
  TESSERA_ASSERT(chunk > 0);
  const OpScope scope("square sums",
                      [&] { return OpWork{.bytes = 4.0 * static_cast<double>(numel)}; });
  const auto kernel = cpu::kernels().square_sums;
  const std::int64_t chunks = (numel + chunk - 1) / chunk;
  cpu::parallel(
      chunks, std::max<std::int64_t>(1, kGrain / chunk), [&](std::int64_t begin, std::int64_t end) {
        kernel(grad, numel, chunk, sums, begin, end);
      });
}

std::int64_t first_nonfinite(const float* values, std::int64_t numel) {
  return cpu::kernels().first_nonfinite(values, numel);
}

}  // namespace tessera::ops
