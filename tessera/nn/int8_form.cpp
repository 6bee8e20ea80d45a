// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/autograd.h"
#include "tessera/nn/weight_form.h"
#include "tessera/ops/int8_rows.h"

namespace tessera::nn {
namespace {

/// The dtype of what is looked up in 8-bit tables.
constexpr at::ScalarType kAroundInt8 = at::kBFloat16;

class Int8Form final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& /*context*/) const override {
    return product(x, weight, bias, std::nullopt);
  }
  at::Tensor logits(const at::Tensor& x_BTC,
                    const Param& weight_VC,
                    const Param* bias_V,
                    StepContext& /*context*/) const override {
    return product(x_BTC, weight_VC, bias_V, at::kFloat);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& /*context*/) const override {
    auto sizes = ids_BT.sizes().vec();
    sizes.push_back(table.tensor().size(1));
    return ops::embedding_int8({table.tensor(), table.scales()}, ids_BT.reshape({-1}), kAroundInt8)
        .view(sizes);
  }

 private:
  static at::Tensor product(const at::Tensor& x,
                            const Param& weight,
                            const Param* bias,
                            std::optional<at::ScalarType> out_dtype) {
    return ops::linear_int8(x,
                            {detail::matrix(weight.tensor()), weight.scales()},
                            bias ? bias->tensor().view({-1}) : at::Tensor(),
                            out_dtype);
  }
};

}  // namespace

const WeightForm& int8_form() {
  static const Int8Form form;
  return form;
}

}  // namespace tessera::nn
