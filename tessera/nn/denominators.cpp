// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/denominators.h"

#include <ATen/ATen.h>

#include "tessera/comm/transport.h"

namespace tessera::nn {

at::Tensor token_mask(const Batch& batch, const ContextParallel* shared) {
  if (!batch.has("attention_mask")) return {};
  const at::Tensor& mask = batch.tensor("attention_mask");
  return shared == nullptr ? mask : own_tokens(mask, *shared);
}

std::vector<double> common_denominators(const Batch& batch, const ContextParallel* shared) {
  if (batch.size() == 0) return {0.0, 0.0, 0.0};
  const bool counts_samples = shared == nullptr || shared->group->index == 0;
  const at::Tensor mask = token_mask(batch, shared);
  double tokens = 0.0;
  if (mask.defined()) {
    tokens = mask.is_meta() ? static_cast<double>(mask.numel())
                            : static_cast<double>(mask.ne(0).sum().item<std::int64_t>());
  } else if (batch.has("input_ids")) {
    tokens = static_cast<double>(batch.tensor("input_ids").numel());
  }
  return {
      tokens, counts_samples ? static_cast<double>(batch.size()) : 0.0, counts_samples ? 1.0 : 0.0};
}

}  // namespace tessera::nn
