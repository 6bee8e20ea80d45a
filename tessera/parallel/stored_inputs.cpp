// SPDX-License-Identifier: Apache-2.0
// Inputs of recomputed blocks in a store, between the forward and the backward pass of the
// executor.
#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/executor.h"

namespace tessera::parallel {

/// Lets the input of a block rest. What the block passes on stays in memory in any case.
void Executor::store_input(Saved& saved) {
  saved.stored.resize(saved.in.diff.size());
  for (std::size_t i = 0; i < saved.in.diff.size(); ++i) {
    at::Tensor& tensor = saved.in.diff[i];
    const bool passed_on = std::ranges::any_of(
        saved.out.flow.diff, [&](const at::Tensor& out) { return out.is_alias_of(tensor); });
    if (passed_on || !store_->takes(tensor)) continue;
    saved.stored[i] = store_->put(tensor);
    tensor = saved.inputs[i] = at::Tensor();
  }
}

void Executor::fetch_input(const Saved& saved) {
  for (const auto& number : saved.stored) {
    if (number) store_->fetch(*number);
  }
}

void Executor::take_input(Saved& saved) {
  for (std::size_t i = 0; i < saved.stored.size(); ++i) {
    if (!saved.stored[i]) continue;
    saved.in.diff[i] = store_->take(*saved.stored[i]);
    saved.in.diff[i].set_requires_grad(true);
    saved.inputs[i] = saved.in.diff[i];
  }
  saved.stored.clear();
}

}  // namespace tessera::parallel
