// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fused_rules.h"

#include <algorithm>

#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::ops {
namespace {

static_assert(kRuleChunk == kChunk, "sums are told by the chunks of flat buffers");

constexpr std::int64_t kGrain = 16384;

/// `bytes`: of an element, but for the working weights.
OpWork work_of(const RuleRange& range, double bytes, bool updates = true) {
  const double working = updates && range.working != nullptr ? 2.0 : 0.0;
  return {.bytes = static_cast<double>(range.numel) * (bytes + working)};
}

template <class Fn>
void over_elements(const char* name, double bytes, const RuleRange& range, const Fn& fn) {
  const OpScope scope(name, [&] { return work_of(range, bytes); });
  TESSERA_ASSERT(range.working == nullptr || range.working_dtype == DType::BF16 ||
                 range.working_dtype == DType::F16);
  cpu::parallel(range.numel, kGrain, fn);
}

}  // namespace

void sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) {
  over_elements("sgd",
                momentum_buffer == nullptr ? 12 : 20,
                range,
                [&](std::int64_t begin, std::int64_t end) {
                  cpu::kernels().sgd(range, momentum_buffer, step, begin, end);
                });
}

void adagrad(const RuleRange& range, float* sum, const AdagradStep& step) {
  over_elements("adagrad", 20, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().adagrad(range, sum, step, begin, end);
  });
}

void lion(const RuleRange& range, float* exp_avg, const LionStep& step) {
  over_elements("lion", 20, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().lion(range, exp_avg, step, begin, end);
  });
}

void rmsprop(const RuleRange& range,
             float* square_avg,
             float* momentum_buffer,
             float* grad_avg,
             const RmspropStep& step) {
  const double bytes = 20 + (momentum_buffer == nullptr ? 0 : 8) + (grad_avg == nullptr ? 0 : 8);
  over_elements("rmsprop", bytes, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().rmsprop(range, square_avg, momentum_buffer, grad_avg, step, begin, end);
  });
}

void nadam(const RuleRange& range, float* exp_avg, float* exp_avg_sq, const NAdamStep& step) {
  over_elements("nadam", 28, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().nadam(range, exp_avg, exp_avg_sq, step, begin, end);
  });
}

void adamax(const RuleRange& range, float* exp_avg, float* exp_inf, const AdamaxStep& step) {
  over_elements("adamax", 28, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().adamax(range, exp_avg, exp_inf, step, begin, end);
  });
}

void lamb_prepare(const RuleRange& range,
                  float* exp_avg,
                  float* exp_avg_sq,
                  const LambStep& step,
                  double* weight_sums,
                  double* update_sums) {
  const OpScope scope("lamb_prepare", [&] { return work_of(range, 24, /*updates=*/false); });
  const std::int64_t chunks = (range.numel + kRuleChunk - 1) / kRuleChunk;
  cpu::parallel(chunks, kGrain / kRuleChunk, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().lamb_prepare(
        range, exp_avg, exp_avg_sq, step, weight_sums, update_sums, begin, end);
  });
}

void lamb_update(const RuleRange& range,
                 const float* exp_avg,
                 const float* exp_avg_sq,
                 const LambStep& step,
                 double rate) {
  over_elements("lamb_update", 16, range, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().lamb_update(range, exp_avg, exp_avg_sq, step, rate, begin, end);
  });
}

void make_direction(const RuleRange& range,
                    float* momentum_buffer,
                    float* direction,
                    double momentum,
                    bool nesterov) {
  over_elements("make_direction",
                momentum_buffer == nullptr ? 8 : 16,
                range,
                [&](std::int64_t begin, std::int64_t end) {
                  cpu::kernels().make_direction(
                      range, momentum_buffer, direction, momentum, nesterov, begin, end);
                });
}

void apply_direction(const RuleRange& range,
                     const float* direction,
                     float* exp_avg,
                     const DirectionStep& step) {
  over_elements("apply_direction",
                exp_avg == nullptr ? 12 : 20,
                range,
                [&](std::int64_t begin, std::int64_t end) {
                  cpu::kernels().apply_direction(range, direction, exp_avg, step, begin, end);
                });
}

void column_square_sums(const float* x_RC,
                        std::int64_t rows,
                        std::int64_t columns,
                        double* sums_C) {
  // Every thread takes some columns of all rows, so that no sum depends on the number of threads.
  const std::int64_t grain = std::max<std::int64_t>(64, kGrain / std::max<std::int64_t>(1, rows));
  cpu::parallel(columns, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().column_square_sums(x_RC, rows, columns, sums_C, begin, end);
  });
}

void scale_rows_columns(float* x_RC,
                        std::int64_t rows,
                        std::int64_t columns,
                        const float* of_rows_R,
                        const float* of_columns_C) {
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, columns);
  cpu::parallel(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::kernels().scale_rows_columns(x_RC, columns, of_rows_R, of_columns_C, begin, end);
  });
}

}  // namespace tessera::ops
