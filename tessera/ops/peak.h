// SPDX-License-Identifier: Apache-2.0
// Measures this machine's peak rates with libtorch's current number of threads: the two lines of a
// roofline.
#pragma once

#include "tessera/base/dtype.h"

namespace tessera::ops {

/// FLOP/s of matrix products with operands of that dtype: the faster of two large products, each
/// repeated for about 0.2 s.
double peak_flops(DType dtype);
/// Bytes/s of a + b -> c over 192 MiB.
double peak_bytes();

}  // namespace tessera::ops
