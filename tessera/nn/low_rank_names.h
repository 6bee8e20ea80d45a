// SPDX-License-Identifier: Apache-2.0
// The parameters of low-rank adapters, by their names.
#pragma once

#include "tessera/tensor/param.h"

namespace tessera::nn {

/// Returns whether a parameter is A, B or a magnitude of an adapter that add_low_rank() or one of
/// its siblings in low_rank.h declared.
bool is_low_rank(const ParamInfo& info);

}  // namespace tessera::nn
