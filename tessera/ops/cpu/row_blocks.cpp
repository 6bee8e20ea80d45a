// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/row_blocks.h"

namespace tessera::ops::cpu {

void reduce_blocks(const float* partial,
                   std::int64_t blocks,
                   std::int64_t stride,
                   std::int64_t columns,
                   bool accumulate,
                   float* to) {
  // Number of columns processed at a time, so that the compiler keeps their sums in vector
  // registers.
  constexpr std::int64_t kStrip = 64;
  double sums[kStrip];
  for (std::int64_t first = 0; first < columns; first += kStrip) {
    const std::int64_t strip = std::min(kStrip, columns - first);
    std::fill_n(sums, kStrip, 0.0);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float* from = partial + block * stride + first;
      for (std::int64_t i = 0; i < strip; ++i)
        sums[i] += from[i];
    }
    for (std::int64_t i = 0; i < strip; ++i)
      to[first + i] = static_cast<float>(accumulate ? to[first + i] + sums[i] : sums[i]);
  }
}

}  // namespace tessera::ops::cpu
