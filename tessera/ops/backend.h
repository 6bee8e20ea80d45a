// SPDX-License-Identifier: Apache-2.0
// The kernels behind the operations: one implementation per kind of device.
//
// A public function of this folder checks its arguments, allocates its result (on meta it does
// nothing else), opens its OpScope, and calls the backend of its tensors' device. A backend is a
// folder (ops/cpu, ops/aten) that registers itself.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "tessera/base/registry.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/fused_rules.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"
#include "tessera/ops/paged_attention.h"
#include "tessera/ops/rotary.h"
#include "tessera/ops/sampler.h"

namespace tessera::ops {

/// Layer norm, or RMS norm if `mean_N` is undefined.
struct NormArgs {
  const at::Tensor &x_NC, &weight_C;
  const at::Tensor& bias_C;     ///< or undefined
  const at::Tensor& branch_NC;  ///< or undefined
  double eps;
  // Destinations.
  const at::Tensor &y_NC, &mean_N, &rstd_N;
  const at::Tensor& sum_NC;  ///< x + branch, if there is a branch
};
/// The backward of a layer norm, or of an RMS norm if `mean_N` is undefined.
struct NormGradArgs {
  const at::Tensor &dy_NC, &x_NC, &mean_N, &rstd_N;
  const at::Tensor& weight_C;  ///< undefined if dx is not needed
  const at::Tensor& plus_NC;   ///< or undefined
  // Destinations; undefined if not needed.
  const at::Tensor &dx_NC, &dweight_C, &dbias_C;
  bool accumulate_weight, accumulate_bias;
};

/// The kernels for one kind of device. The arguments are those of the public functions, which have
/// checked them; unless stated otherwise, no tensor is on meta, and all are on one device.
/// Destinations are always the last tensors and have the shape and the dtype of the result.
/// Formulas, dtypes and rounding are defined at the declarations of the public functions; backends
/// agree up to rounding, and exactly in which elements dropout keeps.
class Backend {
 public:
  /// The products of linear.h.
  enum class Product { Linear, InputGrad, WeightGrad };

  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] virtual bool runs_on(c10::DeviceType type) const = 0;

  // activation.h
  virtual void activate(const at::Tensor& x, Activation activation, const at::Tensor& y) const = 0;
  virtual void activate_backward(const at::Tensor& dy,
                                 const at::Tensor& x,
                                 Activation activation,
                                 const at::Tensor& dx) const = 0;
  virtual void gated(const at::Tensor& x, Activation activation, const at::Tensor& y) const = 0;
  virtual void gated_backward(const at::Tensor& dy,
                              const at::Tensor& x,
                              Activation activation,
                              const at::Tensor& dx) const = 0;

  // attention.h: without args.starts_BT; documents are passed one by one.
  [[nodiscard]] virtual AttentionOut attention(const at::Tensor& q_BHTK,
                                               const at::Tensor& k_BGSK,
                                               const at::Tensor& v_BGSK,
                                               const AttentionArgs& args) const = 0;
  [[nodiscard]] virtual AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                                          const at::Tensor& q_BHTK,
                                                          const at::Tensor& k_BGSK,
                                                          const at::Tensor& v_BGSK,
                                                          const AttentionOut& out,
                                                          const AttentionArgs& args) const = 0;
  /// Bytes that attention(), or attention_backward(), needs besides its arguments and results with
  /// the current number of threads. The tensors may be on meta.
  [[nodiscard]] virtual std::int64_t attention_scratch(const at::Tensor& q_BHTK,
                                                       const at::Tensor& k_BGSK,
                                                       const AttentionArgs& args,
                                                       bool backward) const = 0;

  // cross_entropy.h: logits and labels are contiguous, labels in their range.
  /// Returns the sum of the losses, an fp64 scalar on the same device; dlogits_NV may be the same
  /// tensor as the logits, or undefined.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& logits_NV,
                                                 const at::Tensor& labels_N,
                                                 double label_smoothing,
                                                 const at::Tensor& dlogits_NV) const = 0;
  virtual void exp_rows(const at::Tensor& logits_NV,
                        const at::Tensor& largest_N,
                        const at::Tensor& sums_N) const = 0;

  // dropout.h
  /// y = plus + dropout(x), rounded once; `plus` may be undefined. x must not be empty.
  virtual void dropout(const at::Tensor& x,
                       const at::Tensor& plus,
                       const DropoutKey& key,
                       const at::Tensor& y) const = 0;

  // embedding.h: the backend checks the ids.
  virtual void embedding(const at::Tensor& table_VC,
                         const at::Tensor& ids_N,
                         const at::Tensor& y_NC) const = 0;
  virtual void embedding_grad(const at::Tensor& dy_NC,
                              const at::Tensor& ids_N,
                              bool accumulate,
                              const at::Tensor& dw_VC) const = 0;

  // int8_rows.h
  virtual void widen_int8(const at::Tensor& rows_NI,
                          const at::Tensor& scales_N,
                          const at::Tensor& out_NI) const = 0;
  [[nodiscard]] virtual at::Tensor linear_int8(const at::Tensor& x_NI,
                                               const Int8Rows& matrix,
                                               const at::Tensor& bias_O,
                                               at::ScalarType out_dtype) const = 0;

  // nf4.h: tensors are contiguous, sizes are checked. The end of the last block is written as
  // zeros.
  virtual void widen_nf4(const at::Tensor& codes,
                         const at::Tensor& scales,
                         const at::Tensor& out) const = 0;
  virtual void narrow_nf4(const at::Tensor& values,
                          const at::Tensor& codes_out,
                          const at::Tensor& scales_out) const = 0;

  // linear.h: x and dy have any number of dims in functions that return the result, else two.
  [[nodiscard]] virtual at::Tensor linear(const at::Tensor& x_NI,
                                          const at::Tensor& weight_OI,
                                          const at::Tensor& bias_O,
                                          at::ScalarType out_dtype) const = 0;
  [[nodiscard]] virtual bool products_to_fp32(at::ScalarType dtype) const = 0;
  [[nodiscard]] virtual at::Tensor linear_input_grad(const at::Tensor& dy_NO,
                                                     const at::Tensor& weight_OI) const = 0;
  virtual void linear_weight_grad(const at::Tensor& dy_NO,
                                  const at::Tensor& x_NI,
                                  bool accumulate,
                                  float scale,
                                  const at::Tensor& dw_OI) const = 0;
  /// Bytes that a product of a and b, views of its arguments that may be on meta, needs besides
  /// these and its result of dtype `out`.
  [[nodiscard]] virtual std::int64_t product_scratch(Product product,
                                                     const at::Tensor& a_MK,
                                                     const at::Tensor& b_KN,
                                                     at::ScalarType out,
                                                     bool accumulate) const = 0;
  virtual void linear_bias_grad(const at::Tensor& dy_NO,
                                bool accumulate,
                                const at::Tensor& db_O) const = 0;

  // norm.h
  virtual void norm(const NormArgs& args) const = 0;
  virtual void norm_backward(const NormGradArgs& args) const = 0;

  // rotary.h
  virtual void rotary_table(const at::Tensor& positions_BT,
                            const std::vector<double>& frequencies,
                            const RotaryTable& table) const = 0;
  /// direction: 1, or -1 to rotate back. x must not be empty.
  virtual void rotary(const at::Tensor& x_BHTK,
                      const RotaryTable& table,
                      int direction,
                      const at::Tensor& y_BHTK) const = 0;

  // sampler.h
  [[nodiscard]] virtual std::int64_t sample_token(const at::Tensor& logits_V,
                                                  std::int64_t vocab,
                                                  const SamplerOptions& options,
                                                  std::uint64_t seed,
                                                  std::int64_t position) const = 0;

  // fused_adamw.h and fused_rules.h: ranges are device memory; returned sums and factors of rows
  // and columns are host memory.
  virtual void adamw(const RuleRange& range,
                     float* exp_avg,
                     float* exp_avg_sq,
                     const AdamWScalars& scalars) const = 0;
  virtual void chunk_square_sums(const float* grad,
                                 std::int64_t numel,
                                 std::int64_t chunk,
                                 double* sums,
                                 c10::Device device) const = 0;
  [[nodiscard]] virtual std::int64_t first_nonfinite(const float* values,
                                                     std::int64_t numel,
                                                     c10::Device device) const = 0;
  virtual void sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) const = 0;
  virtual void adagrad(const RuleRange& range, float* sum, const AdagradStep& step) const = 0;
  virtual void lion(const RuleRange& range, float* exp_avg, const LionStep& step) const = 0;
  virtual void rmsprop(const RuleRange& range,
                       float* square_avg,
                       float* momentum_buffer,
                       float* grad_avg,
                       const RmspropStep& step) const = 0;
  virtual void nadam(const RuleRange& range,
                     float* exp_avg,
                     float* exp_avg_sq,
                     const NAdamStep& step) const = 0;
  virtual void adamax(const RuleRange& range,
                      float* exp_avg,
                      float* exp_inf,
                      const AdamaxStep& step) const = 0;
  virtual void lamb_prepare(const RuleRange& range,
                            float* exp_avg,
                            float* exp_avg_sq,
                            const LambStep& step,
                            double* weight_sums,
                            double* update_sums) const = 0;
  virtual void lamb_update(const RuleRange& range,
                           const float* exp_avg,
                           const float* exp_avg_sq,
                           const LambStep& step,
                           double rate) const = 0;
  virtual void make_direction(const RuleRange& range,
                              float* momentum_buffer,
                              float* direction,
                              double momentum,
                              bool nesterov) const = 0;
  virtual void apply_direction(const RuleRange& range,
                               const float* direction,
                               float* exp_avg,
                               const DirectionStep& step) const = 0;
  virtual void column_square_sums(const float* x_RC,
                                  std::int64_t rows,
                                  std::int64_t columns,
                                  double* sums_C,
                                  c10::Device device) const = 0;
  virtual void scale_rows_columns(float* x_RC,
                                  std::int64_t rows,
                                  std::int64_t columns,
                                  const float* of_rows_R,
                                  const float* of_columns_C,
                                  c10::Device device) const = 0;

  // paged_attention.h: tables and lengths are in host memory.
  [[nodiscard]] virtual at::Tensor paged_attention(const at::Tensor& q_BH1K,
                                                   const KvPages& pages,
                                                   const at::Tensor& table_BW,
                                                   const at::Tensor& lengths_B,
                                                   const AttentionArgs& args) const = 0;
};

/// All backends by name; static objects register them.
Registry<const Backend*>& backends();
#define TESSERA_BACKEND(name, backend) \
  static const bool tessera_backend_##name = ::tessera::ops::backends().add(#name, &(backend))

/// The backend for tensors on `device`. For the CPU: "batch_invariant" within a BatchInvariance,
/// else the one that TESSERA_KERNELS names (read once), by default "cpu"; throws Error{Config} for
/// a name that does not run there. For another device: the one with the device's name ("cuda"),
/// else "aten". Can be called from any thread.
const Backend& backend(c10::Device device);
const Backend& backend(Device device);

}  // namespace tessera::ops
