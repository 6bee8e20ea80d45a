// SPDX-License-Identifier: Apache-2.0
// Initial values of parameters: a function of (seed, name, global index) only.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/tensor/param.h"

namespace tessera {

/// Writes elements [begin, begin + out.numel()) of the parameter (row-major, global) to the fp32
/// 1-d tensor `out`. Normal: Box-Muller in fp64 on Philox(mix64(seed, hash(name))), counter = index
/// / 2. Truncated: the same, and a value beyond the cutoff is drawn again with the upper half of
/// the counter = 1, 2, ... Uniform: Philox with counter = index, one number of 53 bits for each
/// element.
void initialize_range(const ParamInfo& info,
                      std::uint64_t seed,
                      std::int64_t begin,
                      at::Tensor out);

}  // namespace tessera
