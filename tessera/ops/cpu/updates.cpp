// SPDX-License-Identifier: Apache-2.0
// The updates of the optimizer rules.
#include <algorithm>
#include <cmath>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::ops::cpu {
namespace {

static_assert(kRuleChunk == kChunk, "chunk sums are those of flat buffers");

constexpr std::int64_t kUpdateGrain = 16384;

template <class Fn>
void over_elements(const RuleRange& range, const Fn& fn) {
  parallel(range.numel, kUpdateGrain, fn);
}

}  // namespace

void CpuBackend::adamw(const RuleRange& range,
                       float* exp_avg,
                       float* exp_avg_sq,
                       const AdamWScalars& scalars) const {
  const auto kernel = kernels().adamw;
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernel(range, exp_avg, exp_avg_sq, scalars, begin, end);
  });
}

void CpuBackend::chunk_square_sums(const float* grad,
                                   std::int64_t numel,
                                   std::int64_t chunk,
                                   double* sums,
                                   c10::Device /*device*/) const {
  const auto kernel = kernels().square_sums;
  const std::int64_t chunks = (numel + chunk - 1) / chunk;
  parallel(
      chunks,
      std::max<std::int64_t>(1, kUpdateGrain / chunk),
      [&](std::int64_t begin, std::int64_t end) { kernel(grad, numel, chunk, sums, begin, end); });
}

std::int64_t CpuBackend::first_nonfinite(const float* values,
                                         std::int64_t numel,
                                         c10::Device /*device*/) const {
  return kernels().first_nonfinite(values, numel);
}

void CpuBackend::sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().sgd(range, momentum_buffer, step, begin, end);
  });
}

void CpuBackend::adagrad(const RuleRange& range, float* sum, const AdagradStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().adagrad(range, sum, step, begin, end);
  });
}

void CpuBackend::lion(const RuleRange& range, float* exp_avg, const LionStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().lion(range, exp_avg, step, begin, end);
  });
}

void CpuBackend::rmsprop(const RuleRange& range,
                         float* square_avg,
                         float* momentum_buffer,
                         float* grad_avg,
                         const RmspropStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().rmsprop(range, square_avg, momentum_buffer, grad_avg, step, begin, end);
  });
}

void CpuBackend::nadam(const RuleRange& range,
                       float* exp_avg,
                       float* exp_avg_sq,
                       const NAdamStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().nadam(range, exp_avg, exp_avg_sq, step, begin, end);
  });
}

void CpuBackend::adamax(const RuleRange& range,
                        float* exp_avg,
                        float* exp_inf,
                        const AdamaxStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().adamax(range, exp_avg, exp_inf, step, begin, end);
  });
}

void CpuBackend::lamb_prepare(const RuleRange& range,
                              float* exp_avg,
                              float* exp_avg_sq,
                              const LambStep& step,
                              double* weight_sums,
                              double* update_sums) const {
  const std::int64_t chunks = (range.numel + kRuleChunk - 1) / kRuleChunk;
  parallel(chunks, kUpdateGrain / kRuleChunk, [&](std::int64_t begin, std::int64_t end) {
    kernels().lamb_prepare(range, exp_avg, exp_avg_sq, step, weight_sums, update_sums, begin, end);
  });
}

void CpuBackend::lamb_update(const RuleRange& range,
                             const float* exp_avg,
                             const float* exp_avg_sq,
                             const LambStep& step,
                             double rate) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().lamb_update(range, exp_avg, exp_avg_sq, step, rate, begin, end);
  });
}

void CpuBackend::make_direction(const RuleRange& range,
                                float* momentum_buffer,
                                float* direction,
                                double momentum,
                                bool nesterov) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().make_direction(range, momentum_buffer, direction, momentum, nesterov, begin, end);
  });
}

void CpuBackend::apply_direction(const RuleRange& range,
                                 const float* direction,
                                 float* exp_avg,
                                 const DirectionStep& step) const {
  over_elements(range, [&](std::int64_t begin, std::int64_t end) {
    kernels().apply_direction(range, direction, exp_avg, step, begin, end);
  });
}

void CpuBackend::column_square_sums(const float* x_RC,
                                    std::int64_t rows,
                                    std::int64_t columns,
                                    double* sums_C,
                                    c10::Device /*device*/) const {
  // Every thread takes some columns of all rows, so that no sum depends on the number of threads.
  const std::int64_t grain =
      std::max<std::int64_t>(64, kUpdateGrain / std::max<std::int64_t>(1, rows));
  parallel(columns, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().column_square_sums(x_RC, rows, columns, sums_C, begin, end);
  });
}

void CpuBackend::scale_rows_columns(float* x_RC,
                                    std::int64_t rows,
                                    std::int64_t columns,
                                    const float* of_rows_R,
                                    const float* of_columns_C,
                                    c10::Device /*device*/) const {
  const std::int64_t grain = kUpdateGrain / std::max<std::int64_t>(1, columns);
  parallel(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().scale_rows_columns(x_RC, columns, of_rows_R, of_columns_C, begin, end);
  });
}

}  // namespace tessera::ops::cpu
