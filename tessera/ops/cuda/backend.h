// SPDX-License-Identifier: Apache-2.0
// The backend for CUDA devices: kernels of its own where there are some, the library's calls of
// ops/gpu and ATen's operations for the rest. It is a part of the plugin, not of the library; tests
// run it on the CPU with emulated kernels.
#pragma once

#include "tessera/ops/gpu/backend.h"

namespace tessera::ops::cuda {

class CudaBackend : public gpu::GpuBackend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override;

  void activate(const at::Tensor& x, Activation activation, const at::Tensor& y) const override;
  void activate_backward(const at::Tensor& dy,
                         const at::Tensor& x,
                         Activation activation,
                         const at::Tensor& dx) const override;
  void gated(const at::Tensor& x, Activation activation, const at::Tensor& y) const override;
  void gated_backward(const at::Tensor& dy,
                      const at::Tensor& x,
                      Activation activation,
                      const at::Tensor& dx) const override;
  void dropout(const at::Tensor& x,
               const at::Tensor& plus,
               const DropoutKey& key,
               const at::Tensor& y) const override;
  void embedding_grad(const at::Tensor& dy_NC,
                      const at::Tensor& ids_N,
                      bool accumulate,
                      const at::Tensor& dw_VC) const override;
  void norm(const NormArgs& args) const override;
  void norm_backward(const NormGradArgs& args) const override;
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits_NV,
                                         const at::Tensor& labels_N,
                                         double label_smoothing,
                                         const at::Tensor& dlogits_NV) const override;

  void reduce_parts(const at::Tensor& parts_PN,
                    comm::Op op,
                    bool accumulate,
                    const at::Tensor& out_N) const override;
  void linear_bias_grad(const at::Tensor& dy_NO,
                        bool accumulate,
                        const at::Tensor& db_O) const override;
  void rotary(const at::Tensor& x_BHTK,
              const RotaryTable& table,
              int direction,
              const at::Tensor& y_BHTK) const override;
  void widen_int8(const at::Tensor& rows_NI,
                  const at::Tensor& scales_N,
                  const at::Tensor& out_NI) const override;
  void widen_nf4(const at::Tensor& codes,
                 const at::Tensor& scales,
                 const at::Tensor& out) const override;
  void narrow_nf4(const at::Tensor& values,
                  const at::Tensor& codes_out,
                  const at::Tensor& scales_out) const override;
  [[nodiscard]] at::Tensor paged_attention(const at::Tensor& q_BH1K,
                                           const KvPages& pages,
                                           const at::Tensor& table_BW,
                                           const at::Tensor& lengths_B,
                                           const AttentionArgs& args) const override;
  [[nodiscard]] std::int64_t sample_token(const at::Tensor& logits_V,
                                          std::int64_t vocab,
                                          const SamplerOptions& options,
                                          std::uint64_t seed,
                                          std::int64_t position) const override;

  void adamw(const RuleRange& range,
             float* exp_avg,
             float* exp_avg_sq,
             const AdamWScalars& scalars) const override;
  void sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step) const override;
  void adagrad(const RuleRange& range, float* sum, const AdagradStep& step) const override;
  void lion(const RuleRange& range, float* exp_avg, const LionStep& step) const override;
  void rmsprop(const RuleRange& range,
               float* square_avg,
               float* momentum_buffer,
               float* grad_avg,
               const RmspropStep& step) const override;
  void nadam(const RuleRange& range,
             float* exp_avg,
             float* exp_avg_sq,
             const NAdamStep& step) const override;
  void adamax(const RuleRange& range,
              float* exp_avg,
              float* exp_inf,
              const AdamaxStep& step) const override;
  void lamb_prepare(const RuleRange& range,
                    float* exp_avg,
                    float* exp_avg_sq,
                    const LambStep& step,
                    double* weight_sums,
                    double* update_sums) const override;
  void lamb_update(const RuleRange& range,
                   const float* exp_avg,
                   const float* exp_avg_sq,
                   const LambStep& step,
                   double rate) const override;
  void make_direction(const RuleRange& range,
                      float* momentum_buffer,
                      float* direction,
                      double momentum,
                      bool nesterov) const override;
  void apply_direction(const RuleRange& range,
                       const float* direction,
                       float* exp_avg,
                       const DirectionStep& step) const override;
  void chunk_square_sums(const float* grad,
                         std::int64_t numel,
                         std::int64_t chunk,
                         double* sums,
                         c10::Device device) const override;
  [[nodiscard]] std::int64_t first_nonfinite(const float* values,
                                             std::int64_t numel,
                                             c10::Device device) const override;
  void column_square_sums(const float* x_RC,
                          std::int64_t rows,
                          std::int64_t columns,
                          double* sums_C,
                          c10::Device device) const override;
  void scale_rows_columns(float* x_RC,
                          std::int64_t rows,
                          std::int64_t columns,
                          const float* of_rows_R,
                          const float* of_columns_C,
                          c10::Device device) const override;
};

}  // namespace tessera::ops::cuda
