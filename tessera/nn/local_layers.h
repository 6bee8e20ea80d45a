// SPDX-License-Identifier: Apache-2.0
// The differentiable product and look-up of one rank, from which the weight forms are made. The
// part that a rank has may be in 8 bits, which are only read. Only .cpp files of this floor include
// this header.
#pragma once

#include <optional>

#include "tessera/nn/autograd.h"

namespace tessera::nn::detail {

/// Returns the function that recomputes `x` where its own node can; else an empty function.
inline Again again_of(const at::Tensor& x) {
  Again again = activation_again(x);
  return again ? again : norm_again(x);
}

/// The product with this rank's part of the weight. `again` recomputes x; empty: x is saved.
at::Tensor local_linear(const at::Tensor& x,
                        const Param& weight,
                        const Param* bias,
                        std::optional<at::ScalarType> out_dtype,
                        StepContext& context,
                        Again again = {});

/// y + bias, for the result y [..., O] of a layer without a bias on this rank and `bias` [O...]. If
/// a grid of ranks holds parts of the bias, its gradient is summed over the samples of all ranks.
at::Tensor add_bias(const at::Tensor& y, const Param& bias, StepContext& context);

/// The rows `ids` of a table that this rank holds whole.
at::Tensor local_embedding(const at::Tensor& ids, const Param& table, StepContext& context);

/// The same with 8-bit values, without gradients.
at::Tensor int8_linear(const at::Tensor& x,
                       const Param& weight,
                       const Param* bias,
                       std::optional<at::ScalarType> out_dtype);
/// Rows `ids` of this rank's part of the table, in bf16.
at::Tensor int8_embedding(const at::Tensor& ids, const Param& table);

}  // namespace tessera::nn::detail
