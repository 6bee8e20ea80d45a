// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/aten/backend.h"
#include "tessera/ops/aten/philox.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::aten {
namespace {

/// The numbers, in their sample, of the elements in `x`: int64 [1, elements].
at::Tensor numbers_of(const at::Tensor& x, const DropoutKey& key) {
  const DropoutRuns runs = dropout_runs(x, key);
  at::Tensor place = at::arange(runs.each, x.options().dtype(at::kLong));
  if (!key.parts.empty()) {
    const at::Tensor part = on_device(at::tensor(key.parts, at::kLong), x.device());
    place = place.remainder(runs.length) + part.repeat_interleave(runs.length) * runs.length;
  }
  if (key.columns > 1) {
    const at::Tensor row = place.floor_divide(runs.run);
    place = (row * key.columns + key.column) * runs.run + place.remainder(runs.run);
  }
  return place.unsqueeze(0);
}

}  // namespace

void AtenBackend::dropout(const at::Tensor& x,
                          const at::Tensor& plus,
                          const DropoutKey& key,
                          const at::Tensor& y) const {
  const at::Tensor samples = sample_numbers(key, 2, x.device());
  const at::Tensor kept = kept_elements(numbers_of(x, key), samples, key).view(x.sizes());
  const at::Tensor dropped = drop(x, kept, key);
  y.copy_(plus.defined() ? dropped + plus.to(at::kFloat) : dropped);
}

}  // namespace tessera::ops::aten
