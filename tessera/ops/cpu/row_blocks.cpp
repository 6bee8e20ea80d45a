// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/row_blocks.h"

namespace tessera::ops::cpu {

void fold_blocks(const float* partial,
                 std::int64_t blocks,
                 std::int64_t stride,
                 std::int64_t columns,
                 bool accumulate,
                 float* to) {
  for (std::int64_t column = 0; column < columns; ++column) {
    double sum = 0.0;
    for (std::int64_t block = 0; block < blocks; ++block)
      sum += partial[block * stride + column];
    to[column] = static_cast<float>(accumulate ? to[column] + sum : sum);
  }
}

}  // namespace tessera::ops::cpu
