// SPDX-License-Identifier: Apache-2.0
// The backend for any device: plain ATen operations in fp32 or better. It is the reference against
// which other backends are tested; a device's own backend may derive from it and override the
// operations for which it has kernels.
#pragma once

#include "tessera/ops/backend.h"

namespace tessera::ops::aten {

class AtenBackend : public Backend {
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
  [[nodiscard]] AttentionOut attention(const at::Tensor& q_BHTK,
                                       const at::Tensor& k_BGSK,
                                       const at::Tensor& v_BGSK,
                                       const AttentionArgs& args) const override;
  [[nodiscard]] AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                                  const at::Tensor& q_BHTK,
                                                  const at::Tensor& k_BGSK,
                                                  const at::Tensor& v_BGSK,
                                                  const AttentionOut& out,
                                                  const AttentionArgs& args) const override;
  [[nodiscard]] std::int64_t attention_scratch(const at::Tensor& q_BHTK,
                                               const at::Tensor& k_BGSK,
                                               const AttentionArgs& args,
                                               bool backward) const override;
  [[nodiscard]] at::Tensor paged_attention(const at::Tensor& q_BH1K,
                                           const KvPages& pages,
                                           const at::Tensor& table_BW,
                                           const at::Tensor& lengths_B,
                                           const AttentionArgs& args) const override;
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits_NV,
                                         const at::Tensor& labels_N,
                                         double label_smoothing,
                                         const at::Tensor& dlogits_NV) const override;
  void exp_rows(const at::Tensor& logits_NV,
                const at::Tensor& largest_N,
                const at::Tensor& sums_N) const override;
  void dropout(const at::Tensor& x,
               const at::Tensor& plus,
               const DropoutKey& key,
               const at::Tensor& y) const override;
  void embedding(const at::Tensor& table_VC,
                 const at::Tensor& ids_N,
                 const at::Tensor& y_NC) const override;
  void embedding_grad(const at::Tensor& dy_NC,
                      const at::Tensor& ids_N,
                      bool accumulate,
                      const at::Tensor& dw_VC) const override;
  void widen_int8(const at::Tensor& rows_NI,
                  const at::Tensor& scales_N,
                  const at::Tensor& out_NI) const override;
  [[nodiscard]] at::Tensor linear_int8(const at::Tensor& x_NI,
                                       const Int8Rows& matrix,
                                       const at::Tensor& bias_O,
                                       at::ScalarType out_dtype) const override;
  void widen_nf4(const at::Tensor& codes,
                 const at::Tensor& scales,
                 const at::Tensor& out) const override;
  void narrow_nf4(const at::Tensor& values,
                  const at::Tensor& codes_out,
                  const at::Tensor& scales_out) const override;
  [[nodiscard]] at::Tensor linear(const at::Tensor& x_NI,
                                  const at::Tensor& weight_OI,
                                  const at::Tensor& bias_O,
                                  at::ScalarType out_dtype) const override;
  [[nodiscard]] bool products_to_fp32(at::ScalarType dtype) const override;
  [[nodiscard]] at::Tensor linear_input_grad(const at::Tensor& dy_NO,
                                             const at::Tensor& weight_OI) const override;
  void linear_weight_grad(const at::Tensor& dy_NO,
                          const at::Tensor& x_NI,
                          bool accumulate,
                          float scale,
                          const at::Tensor& dw_OI) const override;
  [[nodiscard]] std::int64_t product_scratch(Product product,
                                             const at::Tensor& a_MK,
                                             const at::Tensor& b_KN,
                                             at::ScalarType out,
                                             bool accumulate) const override;
  void linear_bias_grad(const at::Tensor& dy_NO,
                        bool accumulate,
                        const at::Tensor& db_O) const override;
  void norm(const NormArgs& args) const override;
  void norm_backward(const NormGradArgs& args) const override;
  void rotary_table(const at::Tensor& positions_BT,
                    const std::vector<double>& frequencies,
                    const RotaryTable& table) const override;
  void rotary(const at::Tensor& x_BHTK,
              const RotaryTable& table,
              int direction,
              const at::Tensor& y_BHTK) const override;
  [[nodiscard]] std::int64_t sample_token(const at::Tensor& logits_V,
                                          std::int64_t vocab,
                                          const SamplerOptions& options,
                                          std::uint64_t seed,
                                          std::int64_t position) const override;
  void adamw(const RuleRange& range,
             float* exp_avg,
             float* exp_avg_sq,
             const AdamWScalars& scalars) const override;
  void chunk_square_sums(const float* grad,
                         std::int64_t numel,
                         std::int64_t chunk,
                         double* sums,
                         c10::Device device) const override;
  [[nodiscard]] std::int64_t first_nonfinite(const float* values,
                                             std::int64_t numel,
                                             c10::Device device) const override;
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

}  // namespace tessera::ops::aten
