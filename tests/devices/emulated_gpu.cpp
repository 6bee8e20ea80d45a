// SPDX-License-Identifier: Apache-2.0
// With TESSERA_KERNELS=emulated the simulated GPUs have the backend of the plugin; otherwise they
// have the reference "aten".
#include "devices/emulated_gpu.h"

#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "devices/simulated_kernels.h"
#include "ops/cuda/emulation.h"

#include "tessera/ops/cuda/backend.h"

namespace tessera::test {
namespace {

using ops::RuleRange;

Bytes floats(const float* values, std::int64_t count) {
  return {values, static_cast<std::size_t>(count) * sizeof(float)};
}

/// An update of a range, which changes its weights and these states.
class ScopedUpdate : public ScopedKernels {
 public:
  ScopedUpdate(const char* what,
               const RuleRange& range,
               std::initializer_list<const float*> states,
               std::initializer_list<const float*> also_reads = {})
      : ScopedKernels(what, reads(range, also_reads), writes(range, states)) {}

 private:
  static std::vector<Bytes> reads(const RuleRange& range,
                                  std::initializer_list<const float*> others) {
    std::vector<Bytes> out = {floats(range.grad, range.numel)};
    for (const float* const one : others)
      out.push_back(floats(one, range.numel));
    return out;
  }
  static std::vector<Bytes> writes(const RuleRange& range,
                                   std::initializer_list<const float*> states) {
    std::vector<Bytes> out = {
        floats(range.master, range.numel),
        {range.working, static_cast<std::size_t>(range.numel) * sizeof(std::uint16_t)}};
    for (const float* const state : states)
      out.push_back(floats(state, range.numel));
    return out;
  }
};

/// What each operation that starts kernels of its own reads and writes; the others are made of
/// libtorch's operations, which the simulated GPU checks itself.
class EmulatedGpu final : public ops::cuda::CudaBackend {
 public:
  using Base = ops::cuda::CudaBackend;
  using Tensor = at::Tensor;

  [[nodiscard]] bool runs_on(c10::DeviceType type) const override {
    return type == c10::DeviceType::PrivateUse1;
  }

  void activate(const Tensor& x, ops::Activation activation, const Tensor& y) const override {
    const ScopedKernels scope("activate", {x}, {y});
    Base::activate(x, activation, y);
  }
  void activate_backward(const Tensor& dy,
                         const Tensor& x,
                         ops::Activation activation,
                         const Tensor& dx) const override {
    const ScopedKernels scope("activate_backward", {dy, x}, {dx});
    Base::activate_backward(dy, x, activation, dx);
  }
  void gated(const Tensor& x, ops::Activation activation, const Tensor& y) const override {
    const ScopedKernels scope("gated", {x}, {y});
    Base::gated(x, activation, y);
  }
  void gated_backward(const Tensor& dy,
                      const Tensor& x,
                      ops::Activation activation,
                      const Tensor& dx) const override {
    const ScopedKernels scope("gated_backward", {dy, x}, {dx});
    Base::gated_backward(dy, x, activation, dx);
  }
  void dropout(const Tensor& x,
               const Tensor& plus,
               const ops::DropoutKey& key,
               const Tensor& y) const override {
    const ScopedKernels scope("dropout", {x, plus}, {y});
    Base::dropout(x, plus, key, y);
  }
  void embedding_grad(const Tensor& dy_NC,
                      const Tensor& ids_N,
                      bool accumulate,
                      const Tensor& dw_VC) const override {
    const ScopedKernels scope("embedding_grad", {dy_NC, ids_N}, {dw_VC});
    Base::embedding_grad(dy_NC, ids_N, accumulate, dw_VC);
  }
  void norm(const ops::NormArgs& a) const override {
    const Tensor sum = a.branch_NC.defined() ? a.sum_NC : Tensor();
    const ScopedKernels scope(
        "norm", {a.x_NC, a.weight_C, a.bias_C, a.branch_NC}, {a.y_NC, a.mean_N, a.rstd_N, sum});
    Base::norm(a);
  }
  void norm_backward(const ops::NormGradArgs& a) const override {
    const ScopedKernels scope("norm_backward",
                              {a.dy_NC, a.x_NC, a.mean_N, a.rstd_N, a.weight_C, a.plus_NC},
                              {a.dx_NC, a.dweight_C, a.dbias_C, a.dbranch_NC});
    Base::norm_backward(a);
  }
  [[nodiscard]] Tensor cross_entropy(const Tensor& logits_NV,
                                     const Tensor& labels_N,
                                     double label_smoothing,
                                     const Tensor& dlogits_NV) const override {
    const ScopedKernels scope("cross_entropy", {logits_NV, labels_N}, {dlogits_NV});
    return Base::cross_entropy(logits_NV, labels_N, label_smoothing, dlogits_NV);
  }
  void reduce_parts(const Tensor& parts_PN,
                    comm::Op op,
                    bool accumulate,
                    const Tensor& out_N) const override {
    const ScopedKernels scope("reduce_parts", {parts_PN}, {out_N});
    Base::reduce_parts(parts_PN, op, accumulate, out_N);
  }
  void linear_bias_grad(const Tensor& dy_NO, bool accumulate, const Tensor& db_O) const override {
    const ScopedKernels scope("linear_bias_grad", {dy_NO}, {db_O});
    Base::linear_bias_grad(dy_NO, accumulate, db_O);
  }
  void rotary(const Tensor& x_BHTK,
              const ops::RotaryTable& table,
              int direction,
              const Tensor& y_BHTK) const override {
    const ScopedKernels scope("rotary", {x_BHTK, table.cosine_BTP, table.sine_BTP}, {y_BHTK});
    Base::rotary(x_BHTK, table, direction, y_BHTK);
  }
  void widen_int8(const Tensor& rows_NI,
                  const Tensor& scales_N,
                  const Tensor& out_NI) const override {
    const ScopedKernels scope("widen_int8", {rows_NI, scales_N}, {out_NI});
    Base::widen_int8(rows_NI, scales_N, out_NI);
  }
  void widen_nf4(const Tensor& codes, const Tensor& scales, const Tensor& out) const override {
    const ScopedKernels scope("widen_nf4", {codes, scales}, {out});
    Base::widen_nf4(codes, scales, out);
  }
  void narrow_nf4(const Tensor& values,
                  const Tensor& codes_out,
                  const Tensor& scales_out) const override {
    const ScopedKernels scope("narrow_nf4", {values}, {codes_out, scales_out});
    Base::narrow_nf4(values, codes_out, scales_out);
  }
  [[nodiscard]] Tensor paged_attention(const Tensor& q_BH1K,
                                       const ops::KvPages& pages,
                                       const Tensor& table_BW,
                                       const Tensor& lengths_B,
                                       const ops::AttentionArgs& args) const override {
    const ScopedKernels scope("paged_attention",
                              {q_BH1K,
                               pages.keys_PGNK,
                               pages.values_PGNK,
                               pages.key_scales_PGN,
                               pages.value_scales_PGN,
                               args.bias_HTS},
                              {});
    Tensor y = Base::paged_attention(q_BH1K, pages, table_BW, lengths_B, args);
    scope.wrote(y);
    return y;
  }
  [[nodiscard]] std::int64_t sample_token(const Tensor& logits_V,
                                          std::int64_t vocab,
                                          const ops::SamplerOptions& options,
                                          std::uint64_t seed,
                                          std::int64_t position) const override {
    const ScopedKernels scope("sample_token", {logits_V}, {});
    return Base::sample_token(logits_V, vocab, options, seed, position);
  }

  void adamw(const RuleRange& range,
             float* exp_avg,
             float* exp_avg_sq,
             const ops::AdamWScalars& scalars) const override {
    const ScopedUpdate scope("adamw", range, {exp_avg, exp_avg_sq});
    Base::adamw(range, exp_avg, exp_avg_sq, scalars);
  }
  void sgd(const RuleRange& range,
           float* momentum_buffer,
           const ops::SgdStep& step) const override {
    const ScopedUpdate scope("sgd", range, {momentum_buffer});
    Base::sgd(range, momentum_buffer, step);
  }
  void adagrad(const RuleRange& range, float* sum, const ops::AdagradStep& step) const override {
    const ScopedUpdate scope("adagrad", range, {sum});
    Base::adagrad(range, sum, step);
  }
  void lion(const RuleRange& range, float* exp_avg, const ops::LionStep& step) const override {
    const ScopedUpdate scope("lion", range, {exp_avg});
    Base::lion(range, exp_avg, step);
  }
  void rmsprop(const RuleRange& range,
               float* square_avg,
               float* momentum_buffer,
               float* grad_avg,
               const ops::RmspropStep& step) const override {
    const ScopedUpdate scope("rmsprop", range, {square_avg, momentum_buffer, grad_avg});
    Base::rmsprop(range, square_avg, momentum_buffer, grad_avg, step);
  }
  void nadam(const RuleRange& range,
             float* exp_avg,
             float* exp_avg_sq,
             const ops::NAdamStep& step) const override {
    const ScopedUpdate scope("nadam", range, {exp_avg, exp_avg_sq});
    Base::nadam(range, exp_avg, exp_avg_sq, step);
  }
  void adamax(const RuleRange& range,
              float* exp_avg,
              float* exp_inf,
              const ops::AdamaxStep& step) const override {
    const ScopedUpdate scope("adamax", range, {exp_avg, exp_inf});
    Base::adamax(range, exp_avg, exp_inf, step);
  }
  void lamb_prepare(const RuleRange& range,
                    float* exp_avg,
                    float* exp_avg_sq,
                    const ops::LambStep& step,
                    double* weight_sums,
                    double* update_sums) const override {
    const ScopedKernels scope("lamb_prepare",
                              {floats(range.master, range.numel), floats(range.grad, range.numel)},
                              {floats(exp_avg, range.numel), floats(exp_avg_sq, range.numel)});
    Base::lamb_prepare(range, exp_avg, exp_avg_sq, step, weight_sums, update_sums);
  }
  void lamb_update(const RuleRange& range,
                   const float* exp_avg,
                   const float* exp_avg_sq,
                   const ops::LambStep& step,
                   double rate) const override {
    const ScopedUpdate scope("lamb_update", range, {}, {exp_avg, exp_avg_sq});
    Base::lamb_update(range, exp_avg, exp_avg_sq, step, rate);
  }
  void make_direction(const RuleRange& range,
                      float* momentum_buffer,
                      float* direction,
                      double momentum,
                      bool nesterov) const override {
    const ScopedKernels scope(
        "make_direction",
        std::vector{floats(range.grad, range.numel), floats(range.master, range.numel)},
        std::vector{floats(momentum_buffer, range.numel), floats(direction, range.numel)});
    Base::make_direction(range, momentum_buffer, direction, momentum, nesterov);
  }
  void apply_direction(const RuleRange& range,
                       const float* direction,
                       float* exp_avg,
                       const ops::DirectionStep& step) const override {
    const ScopedUpdate scope("apply_direction", range, {exp_avg}, {direction});
    Base::apply_direction(range, direction, exp_avg, step);
  }
  void chunk_square_sums(const float* grad,
                         std::int64_t numel,
                         std::int64_t chunk,
                         double* sums,
                         c10::Device device) const override {
    const ScopedKernels scope("chunk_square_sums", std::vector{floats(grad, numel)}, {});
    Base::chunk_square_sums(grad, numel, chunk, sums, device);
  }
  [[nodiscard]] std::int64_t first_nonfinite(const float* values,
                                             std::int64_t numel,
                                             c10::Device device) const override {
    const ScopedKernels scope("first_nonfinite", std::vector{floats(values, numel)}, {});
    return Base::first_nonfinite(values, numel, device);
  }
  void column_square_sums(const float* x_RC,
                          std::int64_t rows,
                          std::int64_t columns,
                          double* sums_C,
                          c10::Device device) const override {
    const ScopedKernels scope("column_square_sums", std::vector{floats(x_RC, rows * columns)}, {});
    Base::column_square_sums(x_RC, rows, columns, sums_C, device);
  }
  void scale_rows_columns(float* x_RC,
                          std::int64_t rows,
                          std::int64_t columns,
                          const float* of_rows_R,
                          const float* of_columns_C,
                          c10::Device device) const override {
    const ScopedKernels scope("scale_rows_columns", {}, std::vector{floats(x_RC, rows * columns)});
    Base::scale_rows_columns(x_RC, rows, columns, of_rows_R, of_columns_C, device);
  }
};

const bool kRegistered = [] {
  const char* const asked = std::getenv("TESSERA_KERNELS");
  if (asked == nullptr || std::string_view(asked) != "emulated") return false;
  ops::backends().add("simulated_plugin", &emulated_gpu());
  return true;
}();

}  // namespace

const ops::Backend& emulated_gpu() {
  static const EmulatedGpu backend;
  static const bool set = [] {
    emulation::set_surroundings(with_own_memory);
    return true;
  }();
  static_cast<void>(set);
  return backend;
}

}  // namespace tessera::test
