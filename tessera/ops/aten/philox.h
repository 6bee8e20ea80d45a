// SPDX-License-Identifier: Apache-2.0
// The random bits of dropout (base/philox.h), computed by integer operations on tensors: the same
// mask as in every other backend.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/dropout.h"

namespace tessera::ops::aten {

/// Returns whether dropout with `key` keeps each element: bool, in the shape to which the arguments
/// broadcast. elements: int64, the element's number in its sample, without key.element_offset;
/// samples: int64, the sample's number in the run.
at::Tensor kept_elements(const at::Tensor& elements,
                         const at::Tensor& samples,
                         const DropoutKey& key);

/// key.sample_ids as int64 [B, 1, ...] with `dims` dimensions.
at::Tensor sample_numbers(const DropoutKey& key, std::int64_t dims, at::Device device);

/// mask * x / (1 - p) in fp32.
at::Tensor drop(const at::Tensor& x, const at::Tensor& kept, const DropoutKey& key);

}  // namespace tessera::ops::aten
