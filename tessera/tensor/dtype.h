// SPDX-License-Identifier: Apache-2.0
// Conversions between tessera's and libtorch's element types and devices.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"

namespace tessera {

at::ScalarType to_torch(DType dtype);
DType from_torch(at::ScalarType type);
c10::Device to_torch(Device device);
/// Throws Error{Unsupported} for a device that tessera does not know.
Device from_torch(c10::Device device);

}  // namespace tessera
