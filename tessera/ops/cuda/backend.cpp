// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cuda/backend.h"

#include <optional>

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cuda/kernels.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::cuda {
namespace {

at::Tensor room_on(std::int64_t count, at::ScalarType dtype, c10::Device device) {
  return at::empty({count}, at::device(device).dtype(dtype));
}

/// Copies values of the device into host memory. If that is pinned, the copy may end later, as the
/// callers of fused_rules.h expect; otherwise the host waits.
void to_host(const at::Tensor& values, double* host) {
  at::from_blob(host, {values.numel()}, at::kDouble).copy_(values, /*non_blocking=*/true);
}

at::Tensor to_device(const float* host, std::int64_t count, c10::Device device) {
  return at::from_blob(const_cast<float*>(host), {count}, at::kFloat).to(device);
}

/// One fp32 value for each channel.
at::Tensor channels_of(const at::Tensor& values_C) {
  return values_C.reshape({-1}).to(at::kFloat).contiguous();
}

/// The memory of a tensor; nullptr if it is undefined.
template <class T = float>
T* memory_of(const at::Tensor& values) {
  return values.defined() ? static_cast<T*>(values.data_ptr()) : nullptr;
}

/// dweight or dbias from the sums of the parts of the rows.
void add_columns(const at::Tensor& parts_PC, bool accumulate, const at::Tensor& to_C) {
  if (!to_C.defined()) return;
  cuda::add_parts(parts_PC.const_data_ptr<float>(),
                  parts_PC.size(0),
                  parts_PC.size(1),
                  accumulate,
                  to_C.data_ptr<float>());
}

std::int64_t chunks_of(std::int64_t numel, std::int64_t chunk) {
  return (numel + chunk - 1) / chunk;
}

/// The places of a tensor's elements in their samples, in the memory of its device.
class Dropped {
 public:
  Dropped(const at::Tensor& x, const DropoutKey& key)
      : samples_(on_device(at::tensor(key.sample_ids, at::kLong), x.device())),
        parts_(key.parts.empty() ? at::Tensor()
                                 : on_device(at::tensor(key.parts, at::kLong), x.device())) {
    const DropoutRuns runs = dropout_runs(x, key);
    elements_ = {.key = key.key,
                 .sample_ids = samples_.const_data_ptr<std::int64_t>(),
                 .parts = memory_of<std::int64_t>(parts_),
                 .element_offset = key.element_offset,
                 .column = key.column,
                 .columns = key.columns,
                 .each = runs.each,
                 .length = runs.length,
                 .run = runs.run,
                 .numel = x.numel(),
                 .threshold = dropout_threshold(key.p),
                 .scale = dropout_scale(key.p)};
  }
  [[nodiscard]] const DropoutElements& elements() const { return elements_; }

 private:
  at::Tensor samples_, parts_;
  DropoutElements elements_{};
};

/// Nothing is dropped without a key.
std::optional<Dropped> places_of(const at::Tensor& x, const DropoutKey* key) {
  if (key == nullptr) return std::nullopt;
  return Dropped(x, *key);
}

DropoutElements elements_of(const std::optional<Dropped>& places) {
  return places ? places->elements() : DropoutElements{};
}

}  // namespace

bool CudaBackend::runs_on(c10::DeviceType type) const {
  return type == c10::DeviceType::CUDA;
}

void CudaBackend::activate(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  const at::Tensor from = x.contiguous();
  cuda::activate(from_torch(x.scalar_type()), from.data_ptr(), x.numel(), activation, y.data_ptr());
}

void CudaBackend::activate_backward(const at::Tensor& dy,
                                    const at::Tensor& x,
                                    Activation activation,
                                    const at::Tensor& dx) const {
  const at::Tensor from = x.contiguous(), d = dy.to(x.scalar_type()).contiguous();
  cuda::activate_grad(from_torch(x.scalar_type()),
                      d.data_ptr(),
                      from.data_ptr(),
                      x.numel(),
                      activation,
                      dx.data_ptr());
}

void CudaBackend::gated(const at::Tensor& x, Activation activation, const at::Tensor& y) const {
  const at::Tensor from = x.contiguous();
  const std::int64_t width = x.size(-1) / 2;
  cuda::gated(from_torch(x.scalar_type()),
              from.data_ptr(),
              width > 0 ? x.numel() / (2 * width) : 0,
              width,
              activation,
              y.data_ptr());
}

void CudaBackend::gated_backward(const at::Tensor& dy,
                                 const at::Tensor& x,
                                 Activation activation,
                                 const at::Tensor& dx) const {
  const at::Tensor from = x.contiguous(), d = dy.to(x.scalar_type()).contiguous();
  const std::int64_t width = x.size(-1) / 2;
  cuda::gated_grad(from_torch(x.scalar_type()),
                   d.data_ptr(),
                   from.data_ptr(),
                   width > 0 ? x.numel() / (2 * width) : 0,
                   width,
                   activation,
                   dx.data_ptr());
}

void CudaBackend::dropout(const at::Tensor& x,
                          const at::Tensor& plus,
                          const DropoutKey& key,
                          const at::Tensor& y) const {
  const Dropped places(x, key);
  const at::Tensor from = x.contiguous();
  const at::Tensor add = plus.defined() ? plus.to(x.scalar_type()).contiguous() : at::Tensor();
  cuda::dropout(from_torch(x.scalar_type()),
                places.elements(),
                from.data_ptr(),
                memory_of<void>(add),
                y.data_ptr());
}

void CudaBackend::embedding_grad(const at::Tensor& dy_NC,
                                 const at::Tensor& ids_N,
                                 bool accumulate,
                                 const at::Tensor& dw_VC) const {
  check_ids(ids_N, dw_VC.size(0));
  if (!accumulate) dw_VC.zero_();
  const at::Tensor dy = dy_NC.contiguous();
  const auto [ids, places] = ids_N.reshape({-1}).sort(/*stable=*/true, 0, /*descending=*/false);
  cuda::embedding_grad(from_torch(dy.scalar_type()),
                       dy.data_ptr(),
                       {.ids = ids.const_data_ptr<std::int64_t>(),
                        .places = places.const_data_ptr<std::int64_t>(),
                        .count = ids.numel()},
                       dw_VC.size(1),
                       dw_VC.data_ptr<float>());
}

void CudaBackend::norm(const NormArgs& args) const {
  const at::Tensor weight = channels_of(args.weight_C);
  const at::Tensor bias = args.bias_C.defined() ? channels_of(args.bias_C) : at::Tensor();
  const at::ScalarType dtype = args.x_NC.scalar_type();
  const at::Tensor x = args.x_NC.contiguous();
  const at::Tensor branch =
      args.branch_NC.defined() ? args.branch_NC.to(dtype).contiguous() : at::Tensor();
  const std::optional<Dropped> places = places_of(x, args.key);
  cuda::norm(from_torch(dtype),
             {.x = memory_of<void>(x),
              .branch = memory_of<void>(branch),
              .weight = memory_of(weight),
              .bias = memory_of(bias),
              .y = memory_of<void>(args.y_NC),
              .sum = memory_of<void>(args.sum_NC),
              .mean = memory_of(args.mean_N),
              .rstd = memory_of(args.rstd_N),
              .channels = weight.numel(),
              .eps = args.eps,
              .drop = elements_of(places)},
             args.rstd_N.numel());
}

void CudaBackend::norm_backward(const NormGradArgs& args) const {
  const at::ScalarType dtype = args.x_NC.scalar_type();
  const std::int64_t rows = args.rstd_N.numel(), channels = args.x_NC.size(-1);
  const at::Tensor dy = args.dy_NC.to(dtype).contiguous(), x = args.x_NC.contiguous();
  const at::Tensor weight = args.weight_C.defined() ? channels_of(args.weight_C) : at::Tensor();
  const at::Tensor plus =
      args.plus_NC.defined() ? args.plus_NC.to(dtype).contiguous() : at::Tensor();
  const std::optional<Dropped> places = places_of(x, args.key);
  const cuda::NormGradRows all = {.dy = memory_of<void>(dy),
                                  .x = memory_of<void>(x),
                                  .mean = memory_of(args.mean_N),
                                  .rstd = memory_of(args.rstd_N),
                                  .weight = memory_of(weight),
                                  .plus = memory_of<void>(plus),
                                  .dx = memory_of<void>(args.dx_NC),
                                  .channels = channels,
                                  .dbranch = memory_of<void>(args.dbranch_NC),
                                  .drop = elements_of(places)};
  // dx may be the memory of dy.
  if (args.dweight_C.defined() || args.dbias_C.defined()) {
    const at::Tensor parts =
        at::empty({2, norm_parts(rows), channels}, x.options().dtype(at::kFloat));
    const at::Tensor of_weight = args.dweight_C.defined() ? parts[0] : at::Tensor(),
                     of_bias = args.dbias_C.defined() ? parts[1] : at::Tensor();
    cuda::norm_columns(from_torch(dtype), all, rows, memory_of(of_weight), memory_of(of_bias));
    add_columns(parts[0], args.accumulate_weight, args.dweight_C);
    add_columns(parts[1], args.accumulate_bias, args.dbias_C);
  }
  if (args.dx_NC.defined()) cuda::norm_grad(from_torch(dtype), all, rows);
}

at::Tensor CudaBackend::cross_entropy(const at::Tensor& logits_NV,
                                      const at::Tensor& labels_N,
                                      double label_smoothing,
                                      const at::Tensor& dlogits_NV) const {
  const std::int64_t rows = logits_NV.size(0);
  const at::Tensor losses = room_on(rows, at::kDouble, logits_NV.device());
  cuda::cross_entropy(dlogits_NV.defined() ? from_torch(dlogits_NV.scalar_type()) : DType::F32,
                      {.logits = logits_NV.const_data_ptr<float>(),
                       .labels = labels_N.const_data_ptr<std::int64_t>(),
                       .losses = losses.data_ptr<double>(),
                       .gradient = memory_of<void>(dlogits_NV),
                       .vocab = logits_NV.size(1),
                       .smoothing = label_smoothing},
                      rows);
  return losses.sum();
}

void CudaBackend::reduce_parts(const at::Tensor& parts_PN,
                               comm::Op op,
                               bool accumulate,
                               const at::Tensor& out_N) const {
  static_assert(static_cast<int>(PartsOp::Sum) == static_cast<int>(comm::Op::Sum) &&
                static_cast<int>(PartsOp::Max) == static_cast<int>(comm::Op::Max) &&
                static_cast<int>(PartsOp::Min) == static_cast<int>(comm::Op::Min) &&
                static_cast<int>(PartsOp::BitOr) == static_cast<int>(comm::Op::BitOr));
  cuda::reduce_parts(from_torch(out_N.scalar_type()),
                     static_cast<PartsOp>(op),
                     parts_PN.const_data_ptr(),
                     parts_PN.size(0),
                     accumulate,
                     out_N.data_ptr(),
                     out_N.numel());
}

void CudaBackend::adamw(const RuleRange& range,
                        float* exp_avg,
                        float* exp_avg_sq,
                        const AdamWScalars& scalars) const {
  cuda::adamw(range, exp_avg, exp_avg_sq, scalars, 0, range.numel);
}

void CudaBackend::sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) const {
  cuda::sgd(range, momentum_buffer, step, 0, range.numel);
}

void CudaBackend::adagrad(const RuleRange& range, float* sum, const AdagradStep& step) const {
  cuda::adagrad(range, sum, step, 0, range.numel);
}

void CudaBackend::lion(const RuleRange& range, float* exp_avg, const LionStep& step) const {
  cuda::lion(range, exp_avg, step, 0, range.numel);
}

void CudaBackend::rmsprop(const RuleRange& range,
                          float* square_avg,
                          float* momentum_buffer,
                          float* grad_avg,
                          const RmspropStep& step) const {
  cuda::rmsprop(range, square_avg, momentum_buffer, grad_avg, step, 0, range.numel);
}

void CudaBackend::nadam(const RuleRange& range,
                        float* exp_avg,
                        float* exp_avg_sq,
                        const NAdamStep& step) const {
  cuda::nadam(range, exp_avg, exp_avg_sq, step, 0, range.numel);
}

void CudaBackend::adamax(const RuleRange& range,
                         float* exp_avg,
                         float* exp_inf,
                         const AdamaxStep& step) const {
  cuda::adamax(range, exp_avg, exp_inf, step, 0, range.numel);
}

void CudaBackend::lamb_prepare(const RuleRange& range,
                               float* exp_avg,
                               float* exp_avg_sq,
                               const LambStep& step,
                               double* weight_sums,
                               double* update_sums) const {
  const std::int64_t chunks = chunks_of(range.numel, kRuleChunk);
  const c10::Device device = to_torch(range.device);
  const at::Tensor of_weights = room_on(chunks, at::kDouble, device),
                   of_updates = room_on(chunks, at::kDouble, device);
  cuda::lamb_prepare(range,
                     exp_avg,
                     exp_avg_sq,
                     step,
                     of_weights.data_ptr<double>(),
                     of_updates.data_ptr<double>());
  to_host(of_weights, weight_sums);
  to_host(of_updates, update_sums);
}

void CudaBackend::lamb_update(const RuleRange& range,
                              const float* exp_avg,
                              const float* exp_avg_sq,
                              const LambStep& step,
                              double rate) const {
  cuda::lamb_update(range, exp_avg, exp_avg_sq, step, rate, 0, range.numel);
}

void CudaBackend::make_direction(const RuleRange& range,
                                 float* momentum_buffer,
                                 float* direction,
                                 double momentum,
                                 bool nesterov) const {
  cuda::make_direction(range, momentum_buffer, direction, momentum, nesterov, 0, range.numel);
}

void CudaBackend::apply_direction(const RuleRange& range,
                                  const float* direction,
                                  float* exp_avg,
                                  const DirectionStep& step) const {
  cuda::apply_direction(range, direction, exp_avg, step, 0, range.numel);
}

void CudaBackend::chunk_square_sums(const float* grad,
                                    std::int64_t numel,
                                    std::int64_t chunk,
                                    double* sums,
                                    c10::Device device) const {
  const at::Tensor each = room_on(chunks_of(numel, chunk), at::kDouble, device);
  cuda::chunk_square_sums(grad, numel, chunk, each.data_ptr<double>());
  to_host(each, sums);
}

std::int64_t CudaBackend::first_nonfinite(const float* values,
                                          std::int64_t numel,
                                          c10::Device device) const {
  const at::Tensor first = room_on(1, at::kLong, device);
  cuda::first_nonfinite(
      values, numel, reinterpret_cast<unsigned long long*>(first.data_ptr<std::int64_t>()));
  const auto index = first.item<std::int64_t>();
  return index < numel ? index : -1;
}

void CudaBackend::column_square_sums(const float* x_RC,
                                     std::int64_t rows,
                                     std::int64_t columns,
                                     double* sums_C,
                                     c10::Device device) const {
  const at::Tensor sums = room_on(columns, at::kDouble, device);
  cuda::column_square_sums(x_RC, rows, columns, sums.data_ptr<double>());
  to_host(sums, sums_C);
}

void CudaBackend::scale_rows_columns(float* x_RC,
                                     std::int64_t rows,
                                     std::int64_t columns,
                                     const float* of_rows_R,
                                     const float* of_columns_C,
                                     c10::Device device) const {
  const at::Tensor row_factors = to_device(of_rows_R, rows, device),
                   column_factors = to_device(of_columns_C, columns, device);
  cuda::scale_rows_columns(x_RC,
                           rows,
                           columns,
                           row_factors.const_data_ptr<float>(),
                           column_factors.const_data_ptr<float>());
}

}  // namespace tessera::ops::cuda
