// SPDX-License-Identifier: Apache-2.0
// Values of a token that all heads of attention use together.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"

namespace tessera::nn {

/// Brings x [B, T, ...], which every tensor-parallel rank computes for its tokens, to the heads of
/// this rank, which see all tokens: the gradient is the sum over the heads of all ranks. On one
/// rank it is x itself. It costs an all-reduce of the gradient; if tensor-parallel ranks split the
/// tokens (parallel.sequence), an all-gather forward and a reduce-scatter backward. Not for grids
/// of ranks.
at::Tensor shared_by_heads(const at::Tensor& x_BTC, StepContext& context);

}  // namespace tessera::nn
