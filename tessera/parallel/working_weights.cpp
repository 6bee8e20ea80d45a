// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/working_weights.h"

#include "tessera/base/error.h"

namespace tessera::parallel {

std::int64_t WorkingWeights::bytes(const WeightSizes& sizes) {
  return sizes.layout.numel() * static_cast<std::int64_t>(size_of(sizes.dtype));
}

void WorkingWeights::forget() {
  TESSERA_ASSERT(!comes_and_goes());
  whole_ = own_ = at::Tensor();
}

Registry<WeightStrategy>& weight_strategies() {
  static Registry<WeightStrategy> instance("strategy for working weights");
  return instance;
}

}  // namespace tessera::parallel
