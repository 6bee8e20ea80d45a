// SPDX-License-Identifier: Apache-2.0
// The product and look-up of a rank's part of an 8-bit weight (Param::attach_int8).
#include "tessera/nn/local_layers.h"
#include "tessera/ops/int8_rows.h"

namespace tessera::nn::detail {

at::Tensor int8_linear(const at::Tensor& x,
                       const Param& weight,
                       const Param* bias,
                       std::optional<at::ScalarType> out_dtype) {
  return ops::linear_int8(x,
                          {matrix(weight.tensor()), weight.scales()},
                          bias ? bias->tensor().view({-1}) : at::Tensor(),
                          out_dtype);
}

at::Tensor int8_embedding(const at::Tensor& ids, const Param& table) {
  // The dtype of what is looked up in 8-bit tables.
  constexpr at::ScalarType kAroundInt8 = at::kBFloat16;
  auto sizes = ids.sizes().vec();
  sizes.push_back(table.tensor().size(1));
  return ops::embedding_int8({table.tensor(), table.scales()}, ids.reshape({-1}), kAroundInt8)
      .view(sizes);
}

}  // namespace tessera::nn::detail
