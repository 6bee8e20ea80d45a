// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/flow_form.h"

#include "tessera/nn/line_flow_form.h"
#include "tessera/nn/tensor_parallel/one_d.h"

namespace tessera::nn {

const FlowForm& flow_form(const StepContext& context) {
  const bool grid = context.tensor != nullptr && context.tensor->on_grid();
  return grid ? grid_flow_form() : line_flow_form();
}

const FlowForm& line_flow_form() {
  static const LineFlowForm form;
  return form;
}

OwnColumns LineFlowForm::own_columns(const ParamInfo& weight_VC,
                                     const StepContext& /*context*/) const {
  const bool cut = one_d::cut_of(weight_VC) != one_d::Cut::None;
  return {cut, cut ? weight_VC.held().begin.front() : 0};
}

at::Tensor LineFlowForm::all_columns(const at::Tensor& logits_NV,
                                     const Param& weight_VC,
                                     StepContext& context) const {
  return one_d::gather_vocab(logits_NV, weight_VC, context);
}

}  // namespace tessera::nn
