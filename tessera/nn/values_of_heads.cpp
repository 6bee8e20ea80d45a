// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/values_of_heads.h"

#include "tessera/nn/tensor_parallel/one_d.h"

namespace tessera::nn {

at::Tensor shared_by_heads(const at::Tensor& x_BTC, StepContext& context) {
  return context.tensor == nullptr ? x_BTC : one_d::enter(x_BTC, context);
}

}  // namespace tessera::nn
