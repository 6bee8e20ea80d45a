// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fused_rules.h"

#include "tessera/base/error.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

/// `bytes`: per element, without the working weights.
OpWork work_of(const RuleRange& range, double bytes, bool updates = true) {
  const double working = updates && range.working != nullptr ? 2.0 : 0.0;
  return {.bytes = static_cast<double>(range.numel) * (bytes + working),
          .shape_class = ShapeClass::Update};
}

/// fn(backend) updates the weights of the range.
template <class Fn>
void update(const char* name, double bytes, const RuleRange& range, const Fn& fn) {
  const OpScope scope(name, [&] { return work_of(range, bytes); });
  TESSERA_ASSERT(range.working == nullptr || range.working_dtype == DType::BF16 ||
                 range.working_dtype == DType::F16);
  fn(backend(range.device));
}

}  // namespace

void sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) {
  update("sgd", momentum_buffer == nullptr ? 12 : 20, range, [&](const Backend& on) {
    on.sgd(range, momentum_buffer, step);
  });
}

void adagrad(const RuleRange& range, float* sum, const AdagradStep& step) {
  update("adagrad", 20, range, [&](const Backend& on) { on.adagrad(range, sum, step); });
}

void lion(const RuleRange& range, float* exp_avg, const LionStep& step) {
  update("lion", 20, range, [&](const Backend& on) { on.lion(range, exp_avg, step); });
}

void rmsprop(const RuleRange& range,
             float* square_avg,
             float* momentum_buffer,
             float* grad_avg,
             const RmspropStep& step) {
  const double bytes = 20 + (momentum_buffer == nullptr ? 0 : 8) + (grad_avg == nullptr ? 0 : 8);
  update("rmsprop", bytes, range, [&](const Backend& on) {
    on.rmsprop(range, square_avg, momentum_buffer, grad_avg, step);
  });
}

void nadam(const RuleRange& range, float* exp_avg, float* exp_avg_sq, const NAdamStep& step) {
  update(
      "nadam", 28, range, [&](const Backend& on) { on.nadam(range, exp_avg, exp_avg_sq, step); });
}

void adamax(const RuleRange& range, float* exp_avg, float* exp_inf, const AdamaxStep& step) {
  update("adamax", 28, range, [&](const Backend& on) { on.adamax(range, exp_avg, exp_inf, step); });
}

void lamb_prepare(const RuleRange& range,
                  float* exp_avg,
                  float* exp_avg_sq,
                  const LambStep& step,
                  double* weight_sums,
                  double* update_sums) {
  const OpScope scope("lamb_prepare", [&] { return work_of(range, 24, /*updates=*/false); });
  backend(range.device).lamb_prepare(range, exp_avg, exp_avg_sq, step, weight_sums, update_sums);
}

void lamb_update(const RuleRange& range,
                 const float* exp_avg,
                 const float* exp_avg_sq,
                 const LambStep& step,
                 double rate) {
  update("lamb_update", 16, range, [&](const Backend& on) {
    on.lamb_update(range, exp_avg, exp_avg_sq, step, rate);
  });
}

void make_direction(const RuleRange& range,
                    float* momentum_buffer,
                    float* direction,
                    double momentum,
                    bool nesterov) {
  update("make_direction", momentum_buffer == nullptr ? 8 : 16, range, [&](const Backend& on) {
    on.make_direction(range, momentum_buffer, direction, momentum, nesterov);
  });
}

void apply_direction(const RuleRange& range,
                     const float* direction,
                     float* exp_avg,
                     const DirectionStep& step) {
  update("apply_direction", exp_avg == nullptr ? 12 : 20, range, [&](const Backend& on) {
    on.apply_direction(range, direction, exp_avg, step);
  });
}

void column_square_sums(
    const float* x_RC, std::int64_t rows, std::int64_t columns, double* sums_C, Device device) {
  backend(device).column_square_sums(x_RC, rows, columns, sums_C, to_torch(device));
}

void scale_rows_columns(float* x_RC,
                        std::int64_t rows,
                        std::int64_t columns,
                        const float* of_rows_R,
                        const float* of_columns_C,
                        Device device) {
  backend(device).scale_rows_columns(
      x_RC, rows, columns, of_rows_R, of_columns_C, to_torch(device));
}

}  // namespace tessera::ops
