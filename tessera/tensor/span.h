// SPDX-License-Identifier: Apache-2.0
// The memory of a tensor as a communication span.
#pragma once

#include "tessera/comm/world.h"
#include "tessera/tensor/dtype.h"

namespace tessera {

/// Returns a span over all elements of `tensor`, which must be contiguous and outlive every use of
/// the span; no copy.
comm::Span span_of(const at::Tensor& tensor);

/// Returns the device of the model's tensors.
c10::Device device_of(comm::World& world);

}  // namespace tessera
