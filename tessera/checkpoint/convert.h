// SPDX-License-Identifier: Apache-2.0
// Copies elements from a file into memory, converting between float dtypes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::checkpoint {

/// Returns whether the dtypes are equal or both are among F64, F32, BF16, F16.
bool convertible(DType from, DType to) noexcept;

/// Copies `count` elements; neither side need be aligned. Narrowing rounds once, to nearest, ties
/// to even.
void convert(
    DType from, const std::byte* in, DType to, std::byte* out, std::int64_t count) noexcept;

}  // namespace tessera::checkpoint
