// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (nn/low_rank.h) on a grid of ranks. The matrices A [R, I] and B [O..., R] have
// the role Role::Vector: a rank holds their features as it holds the vector of these features, so
// that it multiplies its own part of a value without receiving weights, and the ranks exchange only
// R channels. Legend: B samples, R rank of the adapter, I inputs, O outputs; sizes of values are
// those of this rank's part.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/dropout.h"
#include "tessera/tensor/param.h"

namespace tessera::nn::grid {

/// scale * B (A x) for this rank's part of x [B, ..., I] and of the result [B, ..., O]. Cost of
/// communication: a sum of [B, ..., R] forward and one backward; in mode 3d also a gather of each
/// along one axis; the gradients of A and B are summed over the ranks that hold other samples.
at::Tensor low_rank(
    const at::Tensor& x, const Param& a, const Param& b, double scale, StepContext& context);
/// The values of a vector, whose gradient is summed over the samples of all ranks.
at::Tensor vector_of(const Param& vector, StepContext& context);

/// Restricts a dropout mask of all samples to this rank's part of the input of A. Throws
/// Error{Unsupported} if the ranks hold unequal shares of the features.
void cut_input_dropout(ops::DropoutKey& key, const Param& a, const StepContext& context);

/// The norms of the rows of W + scale B A, for the outputs of B that this rank holds, in their
/// shape: fp32 [O...] without a gradient. `held`: this rank's part of W, of the outputs of B only,
/// [O..., I]; `weight`: W's info. Memory: A and B whole, and the change of this rank's part of W.
at::Tensor row_norms(const at::Tensor& held,
                     const ParamInfo& weight,
                     const Param& a,
                     const Param& b,
                     double scale,
                     StepContext& context);

}  // namespace tessera::nn::grid
