// SPDX-License-Identifier: Apache-2.0
// The weight forms of modes 2d, 2.5d and 3d (grid.h).
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/weight_form.h"

namespace tessera::nn {
namespace {

class GridForm final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    return grid::linear(x, weight, bias, std::nullopt, context);
  }
  at::Tensor logits(const at::Tensor& x_BTC,
                    const Param& weight_VC,
                    const Param* bias_V,
                    StepContext& context) const override {
    return grid::all_logits(
        grid::linear(x_BTC, weight_VC, bias_V, at::kFloat, context), weight_VC, context);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    return grid::embedding(ids_BT, table, context);
  }
};

class WholeOnGridForm final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    return whole_form().linear(x, weight, bias, context);
  }
  at::Tensor logits(const at::Tensor& x_BTC,
                    const Param& weight_VC,
                    const Param* bias_V,
                    StepContext& context) const override {
    return whole_form().logits(x_BTC, weight_VC, bias_V, context);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    return grid::embedding(ids_BT, table, context);
  }
};

}  // namespace

const WeightForm& grid_form() {
  static const GridForm form;
  return form;
}

const WeightForm& whole_on_grid_form() {
  static const WholeOnGridForm form;
  return form;
}

}  // namespace tessera::nn
