// SPDX-License-Identifier: Apache-2.0
// A tensor's memory as the transports see it.
#pragma once

#include "tessera/comm/world.h"
#include "tessera/tensor/dtype.h"

namespace tessera {

/// All elements of `tensor`, which must be contiguous and outlive whatever the span is given to; no
/// copy.
comm::Span span_of(const at::Tensor& tensor);

}  // namespace tessera
