// SPDX-License-Identifier: Apache-2.0
// Between our element types and libtorch's, and the precision a run works in.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"

namespace tessera {

at::ScalarType to_torch(DType dtype);
DType from_torch(at::ScalarType type);

}  // namespace tessera
