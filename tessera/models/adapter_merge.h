// SPDX-License-Identifier: Apache-2.0
// A helper that adapters and their merging share.
#pragma once

#include <cstddef>

namespace tessera::models {

/// The root of the sum of squares, in fp64.
double norm_of(const float* values, std::size_t count);

}  // namespace tessera::models
