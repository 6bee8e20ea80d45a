// SPDX-License-Identifier: Apache-2.0
// Reads the part of a parameter that a segment holds from a source that has the whole parameter.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Writes elements [begin, end) of a parameter (row-major, global) as fp32.
using FillRange =
    std::function<void(const ParamInfo&, std::int64_t begin, std::int64_t end, float* out)>;

/// Writes elements [begin, end) of the segment's box. Memory: some megabytes if the box consists of
/// short rows.
void fill_held(const FillRange& source,
               const Segment& segment,
               std::int64_t begin,
               std::int64_t end,
               float* out);

}  // namespace tessera::parallel
