// SPDX-License-Identifier: Apache-2.0
// The updates of the optimizer rules: the operations of the CPU kernels in the same order, one by
// one, with coefficients rounded to fp32 once.
#include <cmath>

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops::aten {
namespace {

float f32(double value) {
  return static_cast<float>(value);
}

/// A tensor over the memory of a pointer.
template <class T>
at::Tensor memory_of(T* data,
                     at::IntArrayRef sizes,
                     at::ScalarType dtype,
                     c10::Device device = c10::DeviceType::CPU) {
  return at::for_blob(const_cast<std::remove_const_t<T>*>(data), sizes)
      .options(at::device(device).dtype(dtype))
      .target_device(device)
      .make_tensor();
}

/// The values of an fp32 range.
class Range {
 public:
  explicit Range(const RuleRange& range) : range_(range), device_(to_torch(range.device)) {}

  [[nodiscard]] at::Tensor of(const float* values) const {
    return memory_of(values, {range_.numel}, at::kFloat, device_);
  }
  [[nodiscard]] at::Tensor weights() const { return of(range_.master); }
  [[nodiscard]] at::Tensor grad() const { return of(range_.grad) * f32(range_.grad_scale); }
  /// Writes the weights and their working copy.
  void put(const at::Tensor& weights) const {
    of(range_.master).copy_(weights);
    if (range_.working == nullptr) return;
    memory_of(range_.working, {range_.numel}, to_torch(range_.working_dtype), device_)
        .copy_(weights);
  }

 private:
  const RuleRange& range_;
  c10::Device device_;
};

/// Rounded correctly, unlike MKL's fp32 square root.
at::Tensor root_of(const at::Tensor& x) {
  return x.to(at::kDouble).sqrt().to(at::kFloat);
}

/// values = values * keep + fresh, which is returned.
at::Tensor decay_into(const at::Tensor& values, double keep, const at::Tensor& fresh) {
  return values.copy_(values * f32(keep) + fresh);
}

/// Writes sums of squares over chunks to host memory; if that is pinned, the copy may end later.
void put_square_sums(const at::Tensor& x, std::int64_t chunk, double* sums) {
  const std::int64_t chunks = (x.numel() + chunk - 1) / chunk;
  at::Tensor squares = at::zeros({chunks * chunk}, x.options().dtype(at::kDouble));
  squares.narrow(0, 0, x.numel()).copy_(x.to(at::kDouble).square());
  memory_of(sums, {chunks}, at::kDouble)
      .copy_(squares.view({chunks, chunk}).sum(1), /*non_blocking=*/true);
}

at::Tensor lamb_direction(const LambStep& s,
                          const at::Tensor& p,
                          const at::Tensor& m,
                          const at::Tensor& v) {
  const at::Tensor root = root_of(v * f32(1.0 / s.correction2) + f32(s.eps_inside));
  return m * f32(1.0 / s.correction1) / (root + f32(s.eps_outside)) + p * f32(s.weight_decay);
}

}  // namespace

void AtenBackend::adamw(const RuleRange& range,
                        float* exp_avg,
                        float* exp_avg_sq,
                        const AdamWScalars& s) const {
  const auto t = static_cast<double>(s.step);
  const double correction1 = s.bias_correction ? 1.0 - std::pow(s.beta1, t) : 1.0;
  const double correction2 = s.bias_correction ? 1.0 - std::pow(s.beta2, t) : 1.0;
  const float keep = s.decoupled ? f32(1.0 - s.lr * s.weight_decay) : 1.0F;
  const float l2 = s.decoupled ? 0.0F : f32(s.weight_decay);
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * l2;
  const at::Tensor m = decay_into(all.of(exp_avg), s.beta1, g * f32(1.0 - s.beta1));
  const at::Tensor v = decay_into(all.of(exp_avg_sq), s.beta2, g * g * f32(1.0 - s.beta2));
  const at::Tensor root = root_of(v) * f32(1.0 / std::sqrt(correction2)) + f32(s.eps);
  all.put(p * keep - m * f32(s.lr / correction1) / root);
}

void AtenBackend::chunk_square_sums(const float* grad,
                                    std::int64_t numel,
                                    std::int64_t chunk,
                                    double* sums,
                                    c10::Device device) const {
  put_square_sums(memory_of(grad, {numel}, at::kFloat, device), chunk, sums);
}

std::int64_t AtenBackend::first_nonfinite(const float* values,
                                          std::int64_t numel,
                                          c10::Device device) const {
  const at::Tensor bad =
      memory_of(values, {numel}, at::kFloat, device).isfinite().logical_not().nonzero();
  return bad.size(0) == 0 ? -1 : bad[0][0].item<std::int64_t>();
}

void AtenBackend::sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.weight_decay);
  at::Tensor step = g * f32(s.add);
  if (momentum_buffer != nullptr) {
    step = decay_into(all.of(momentum_buffer), s.momentum, step);
    if (s.nesterov) step = g + step * f32(s.momentum);
  }
  all.put(p - step * f32(s.lr));
}

void AtenBackend::adagrad(const RuleRange& range, float* sum, const AdagradStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.weight_decay);
  const at::Tensor total = all.of(sum);
  total.copy_(total + f32(s.initial) + g * g);
  all.put(p - g * f32(s.lr) / (root_of(total) + f32(s.eps)));
}

void AtenBackend::lion(const RuleRange& range, float* exp_avg, const LionStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad(), m = all.of(exp_avg);
  const at::Tensor step = (m * f32(s.beta1) + g * f32(1.0 - s.beta1)).sign() * f32(s.lr);
  decay_into(m, s.beta2, g * f32(1.0 - s.beta2));
  all.put(p - p * f32(s.lr * s.weight_decay) - step);
}

void AtenBackend::rmsprop(const RuleRange& range,
                          float* square_avg,
                          float* momentum_buffer,
                          float* grad_avg,
                          const RmspropStep& s) const {
  const Range all(range);
  const float rest = f32(1.0 - s.alpha);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.weight_decay);
  at::Tensor v = decay_into(all.of(square_avg), s.alpha, g * g * rest);
  if (grad_avg != nullptr) {
    const at::Tensor mean = decay_into(all.of(grad_avg), s.alpha, g * rest);
    v = (v - mean * mean).clamp_min(0.0);
  }
  at::Tensor step = g / (root_of(v) + f32(s.eps));
  if (momentum_buffer != nullptr) step = decay_into(all.of(momentum_buffer), s.momentum, step);
  all.put(p - step * f32(s.lr));
}

void AtenBackend::nadam(const RuleRange& range,
                        float* exp_avg,
                        float* exp_avg_sq,
                        const NAdamStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.l2);
  const at::Tensor m = decay_into(all.of(exp_avg), s.beta1, g * f32(1.0 - s.beta1));
  const at::Tensor v = decay_into(all.of(exp_avg_sq), s.beta2, g * g * f32(1.0 - s.beta2));
  const at::Tensor root = root_of(v * f32(1.0 / s.correction2)) + f32(s.eps);
  all.put(p - p * f32(s.decay) - (g * f32(s.grad_rate) + m * f32(s.avg_rate)) / root);
}

void AtenBackend::adamax(const RuleRange& range,
                         float* exp_avg,
                         float* exp_inf,
                         const AdamaxStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.weight_decay);
  const at::Tensor m = decay_into(all.of(exp_avg), s.beta1, g * f32(1.0 - s.beta1));
  const at::Tensor largest = all.of(exp_inf);
  largest.copy_(at::maximum(g.abs() + f32(s.eps), largest * f32(s.beta2)));
  all.put(p - m * f32(s.rate) / largest);
}

void AtenBackend::lamb_prepare(const RuleRange& range,
                               float* exp_avg,
                               float* exp_avg_sq,
                               const LambStep& s,
                               double* weight_sums,
                               double* update_sums) const {
  const Range all(range);
  const at::Tensor p = all.weights(), g = all.grad() + p * f32(s.l2);
  const at::Tensor m = decay_into(all.of(exp_avg), s.beta1, g * f32(s.add));
  const at::Tensor v = decay_into(all.of(exp_avg_sq), s.beta2, g * g * f32(1.0 - s.beta2));
  put_square_sums(p, kRuleChunk, weight_sums);
  put_square_sums(lamb_direction(s, p, m, v), kRuleChunk, update_sums);
}

void AtenBackend::lamb_update(const RuleRange& range,
                              const float* exp_avg,
                              const float* exp_avg_sq,
                              const LambStep& s,
                              double rate) const {
  const Range all(range);
  const at::Tensor p = all.weights();
  all.put(p - lamb_direction(s, p, all.of(exp_avg), all.of(exp_avg_sq)) * f32(rate));
}

void AtenBackend::make_direction(const RuleRange& range,
                                 float* momentum_buffer,
                                 float* direction,
                                 double momentum,
                                 bool nesterov) const {
  const Range all(range);
  at::Tensor out = all.grad();
  if (momentum_buffer != nullptr) {
    const at::Tensor fresh = out * f32(1.0 - momentum);
    out = decay_into(all.of(momentum_buffer), momentum, fresh);
    if (nesterov) out = fresh + out * f32(momentum);
  }
  all.of(direction).copy_(out);
}

void AtenBackend::apply_direction(const RuleRange& range,
                                  const float* direction,
                                  float* exp_avg,
                                  const DirectionStep& s) const {
  const Range all(range);
  const at::Tensor p = all.weights();
  at::Tensor step = all.of(direction) * f32(s.rate);
  if (exp_avg != nullptr) step = decay_into(all.of(exp_avg), s.beta1, step * f32(1.0 - s.beta1));
  all.put(p - p * f32(s.decay) - step);
}

void AtenBackend::column_square_sums(const float* x_RC,
                                     std::int64_t rows,
                                     std::int64_t columns,
                                     double* sums_C,
                                     c10::Device device) const {
  const at::Tensor x = memory_of(x_RC, {rows, columns}, at::kFloat, device);
  memory_of(sums_C, {columns}, at::kDouble).copy_(x.to(at::kDouble).square().sum(0));
}

void AtenBackend::scale_rows_columns(float* x_RC,
                                     std::int64_t rows,
                                     std::int64_t columns,
                                     const float* of_rows_R,
                                     const float* of_columns_C,
                                     c10::Device device) const {
  const at::Tensor row_factors = memory_of(of_rows_R, {rows, 1}, at::kFloat).to(device),
                   column_factors = memory_of(of_columns_C, {columns}, at::kFloat).to(device);
  memory_of(x_RC, {rows, columns}, at::kFloat, device).mul_(row_factors).mul_(column_factors);
}

}  // namespace tessera::ops::aten
