// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several arrays: the arithmetic of every reduction between ranks.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/dtype.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// Returns whether `op` is defined for elements of `dtype`: BitOr is for integers only; F16, bool
/// and the unsigned and 16-bit integers have no reductions.
bool can_reduce(Op op, DType dtype) noexcept;

/// Computes out[i] = in_0[i] op in_1[i] op ..., from the left, for every i separately: the bits do
/// not depend on alignment, on the count or on how a caller splits the arrays.
///
/// Each of `inputs` holds `count` elements; `out` is one of them or overlaps none. At least one
/// input is required; a single input is copied. BF16 is reduced in fp32 and rounded once at the
/// end. Integers wrap around. Max and Min give NaN if an input is NaN. Throws Error{Unsupported}
/// unless can_reduce(). Threads: any.
void reduce_arrays(
    Op op, DType dtype, void* out, std::span<const void* const> inputs, std::size_t count);

/// Like reduce_arrays() of all `buffers` in this order; the result is written to each of them.
void reduce_in_place(Op op, DType dtype, std::span<void* const> buffers, std::size_t count);

}  // namespace tessera::comm
