// SPDX-License-Identifier: Apache-2.0
// The elements that dropout keeps, for kernels that drop them in a pass that they make anyway.
// Compile without contraction (-fmad=false).
#pragma once

#include "tessera/base/philox.h"
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

/// True if the element is kept: the bits of ops::dropout().
__device__ __forceinline__ bool is_kept(const DropoutElements& a, i64 at) {
  const i64 row = at / a.each;
  i64 place = at % a.each;
  if (a.parts != nullptr) place = place % a.length + a.parts[place / a.length] * a.length;
  if (a.columns > 1) {
    const i64 run = place / a.run;
    place = (run * a.columns + a.column) * a.run + place % a.run;
  }
  const i64 number = place + a.element_offset;
  const Philox::Block words = Philox{a.key}(static_cast<std::uint64_t>(number) >> 2U,
                                            static_cast<std::uint64_t>(a.sample_ids[row]));
  return words[static_cast<std::size_t>(number) & 3U] >> 8U >= a.threshold;
}

/// Element `at` of dropout(x), whose value in x is `value`.
__device__ __forceinline__ float dropped(const DropoutElements& a, i64 at, float value) {
  return is_kept(a, at) ? value * a.scale : 0.0F;
}

}  // namespace tessera::ops::cuda
