// SPDX-License-Identifier: Apache-2.0
// Element-wise left folds over several arrays: the arithmetic of every reduction between ranks.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/dtype.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// Whether `op` is defined for elements of `dtype`: BitOr is for integers only; F16, bool and the
/// unsigned and 16-bit integers have no folds.
bool can_fold(Op op, DType dtype) noexcept;

/// out[i] = in_0[i] op in_1[i] op ..., folded from the left, for every i by itself: the bits do not
/// depend on alignment, on the count or on how a caller cuts the arrays.
///
/// Each of `inputs` holds `count` elements; `out` is one of them or overlaps none. At least one
/// input; one input is copied. BF16 is folded in fp32 and rounded once at the end. Integers wrap
/// around. Max and Min give NaN if an input is NaN.
/// Throws Error{Unsupported} unless can_fold(). Threads: any.
void fold(Op op, DType dtype, void* out, std::span<const void* const> inputs, std::size_t count);

/// fold() into all of `buffers`, which are also its inputs, in this order.
void fold_in_place(Op op, DType dtype, std::span<void* const> buffers, std::size_t count);

}  // namespace tessera::comm
