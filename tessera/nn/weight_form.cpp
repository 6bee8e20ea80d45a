// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/weight_form.h"

#include "tessera/nn/line_flow_form.h"
#include "tessera/nn/tensor_parallel/one_d.h"

namespace tessera::nn {

const WeightForm& weight_form(const Param& weight, const StepContext& context) {
  return flow_form(context).weight_form(weight.info());
}

const WeightForm& LineFlowForm::weight_form(const ParamInfo& weight) const {
  switch (one_d::cut_of(weight)) {
    case one_d::Cut::None:
      break;
    case one_d::Cut::Outputs:
      return split_outputs_form();
    case one_d::Cut::Inputs:
      return split_inputs_form();
  }
  return whole_form();
}

}  // namespace tessera::nn
