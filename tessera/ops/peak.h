// SPDX-License-Identifier: Apache-2.0
// Measures the peak rates of this machine with libtorch's current number of threads, or of a
// device: the two lines of a roofline.
#pragma once

#include "tessera/base/dtype.h"

namespace tessera::ops {

/// FLOP/s of matrix products with operands of that dtype: the fastest of two large products, or, on
/// a device that computes these in less than 2 ms, of a larger one too; each repeated for about
/// 0.2 s.
double peak_flops(DType dtype, Device device = {});
/// Bytes/s of a + b -> c over 192 MiB.
double peak_bytes(Device device = {});

}  // namespace tessera::ops
