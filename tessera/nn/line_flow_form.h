// SPDX-License-Identifier: Apache-2.0
// The flow of one rank and of mode 1d. What it has in common with a layer is in the file of that
// layer.
#pragma once

#include "tessera/nn/flow_form.h"

namespace tessera::nn {

class LineFlowForm final : public FlowForm {
 public:
  [[nodiscard]] bool splits_samples() const override { return false; }
  [[nodiscard]] bool is_partial(const StepContext& context) const override {
    return context.cuts_tokens();
  }
  [[nodiscard]] OwnSamples own_samples(std::int64_t batch,
                                       FlowPlace /*place*/,
                                       const StepContext& /*context*/) const override {
    return {0, batch};
  }
  [[nodiscard]] at::Tensor gather(const at::Tensor& x, StepContext& /*context*/) const override {
    return x;
  }
  [[nodiscard]] at::Tensor take(const at::Tensor& x, StepContext& /*context*/) const override {
    return x;
  }
  void cut_dropout(ops::DropoutKey& /*key*/, const StepContext& /*context*/) const override {}
  void cut_inner_dropout(ops::DropoutKey& /*key*/, const StepContext& /*context*/) const override {}
  std::int64_t cut_attention(ops::AttentionArgs& /*args*/,
                             const StepContext& /*context*/) const override {
    return 0;
  }
  // norm.cpp
  [[nodiscard]] Normed layer_norm(const at::Tensor& x_BTC,
                                  const at::Tensor& branch_BTC,
                                  const ops::DropoutKey& key,
                                  const Param& weight,
                                  const Param* bias,
                                  double eps,
                                  StepContext& context) const override;
  [[nodiscard]] Normed rms_norm(const at::Tensor& x_BTC,
                                const at::Tensor& branch_BTC,
                                const ops::DropoutKey& key,
                                const Param& weight,
                                double eps,
                                StepContext& context,
                                double offset) const override;
  // vocab_loss.cpp
  [[nodiscard]] VocabLoss vocab_loss(const at::Tensor& x_BTC,
                                     const Param& weight_VC,
                                     const Param* bias_V,
                                     const at::Tensor& labels_BT,
                                     double label_smoothing,
                                     StepContext& context,
                                     double softcap) const override;
  // flow_form.cpp
  [[nodiscard]] OwnColumns own_columns(const ParamInfo& weight_VC,
                                       const StepContext& context) const override;
  [[nodiscard]] at::Tensor all_columns(const at::Tensor& logits_NV,
                                       const Param& weight_VC,
                                       StepContext& context) const override;
  // weight_form.cpp
  [[nodiscard]] const WeightForm& weight_form(const ParamInfo& weight) const override;
  // add_bias.cpp
  void bias_grad(const at::Tensor& dy, const Param& bias, StepContext& context) const override;
  [[nodiscard]] at::Tensor sum_over_samples(const at::Tensor& mine,
                                            const ParamInfo& /*info*/,
                                            StepContext& /*context*/,
                                            const char* /*what*/) const override {
    return mine;
  }
};

}  // namespace tessera::nn
