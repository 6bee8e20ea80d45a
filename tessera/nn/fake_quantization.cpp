// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/fake_quantization.h"

#include <ATen/ATen.h>

#include "tessera/tensor/upload.h"

namespace tessera::nn {

at::Tensor FakeQuantizedForm::linear(const at::Tensor& x,
                                     const Param& weight,
                                     const Param* bias,
                                     StepContext& context) const {
  return plain_linear(x, weight, bias, context);  // whose product of this rank rounds
}

at::Tensor FakeQuantizedForm::embedding(const at::Tensor& ids_BT,
                                        const Param& table,
                                        StepContext& context) const {
  return plain_embedding(ids_BT, table, context);
}

at::Tensor FakeQuantizedForm::rounded_input(const at::Tensor& x_NI) const {
  return how_.activations ? ops::fake_quantized(x_NI, *how_.activations, how_.group_size) : x_NI;
}

at::Tensor FakeQuantizedForm::rounded_weight(const at::Tensor& weight_OI) const {
  at::Tensor part_O;
  if (!part_of_rows_.empty() && !weight_OI.is_meta())
    part_O = on_device(at::tensor(at::ArrayRef<std::int64_t>(part_of_rows_), at::kLong),
                       weight_OI.device());
  return ops::fake_quantized(weight_OI, how_.weights, how_.group_size, part_O);
}

const FakeQuantizedForm* fake_form_of(const Param& weight, const StepContext& context) {
  if (weight.extension() == nullptr) return nullptr;
  const auto* const form = dynamic_cast<const FakeQuantizedForm*>(form_of(weight));
  if (form == nullptr) return nullptr;
  // Memory is measured with weights that have no values, for the steps that round.
  return form->rounds(context) || weight.tensor().is_meta() ? form : nullptr;
}

}  // namespace tessera::nn
