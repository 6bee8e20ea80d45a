// SPDX-License-Identifier: Apache-2.0
// Conversions between tessera's and libtorch's element types.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"

namespace tessera {

at::ScalarType to_torch(DType dtype);
DType from_torch(at::ScalarType type);

}  // namespace tessera
