// SPDX-License-Identifier: Apache-2.0
// Reads the part of a parameter that this rank holds from a source that has the whole parameter.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Writes elements [begin, end) of a parameter (row-major, global) as fp32.
using FillRange =
    std::function<void(const ParamInfo&, std::int64_t begin, std::int64_t end, float* out)>;

/// Writes elements [begin, end) of this rank's box of the parameter. Memory: some megabytes if the
/// box consists of short rows.
void fill_held(const FillRange& source,
               const ParamInfo& info,
               std::int64_t begin,
               std::int64_t end,
               float* out);

}  // namespace tessera::parallel
