// SPDX-License-Identifier: Apache-2.0
// The mode in which layers work on an arrangement of ranks.
#pragma once

#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/options.h"

namespace tessera::parallel {

/// The nn mode of an arrangement of ranks.
nn::TensorMode mode_of(TensorLayout layout);

}  // namespace tessera::parallel
