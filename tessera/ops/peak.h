// SPDX-License-Identifier: Apache-2.0
// What this machine gives at most, measured, with the threads that libtorch has now: the two lines
// of a roofline.
#pragma once

#include "tessera/base/dtype.h"

namespace tessera::ops {

/// FLOP/s of matrix products with operands of that dtype: the fastest of two large ones, each
/// repeated for about 0.2 s.
double peak_flops(DType dtype);
/// Bytes/s of a + b -> c over 192 MiB.
double peak_bytes();

}  // namespace tessera::ops
