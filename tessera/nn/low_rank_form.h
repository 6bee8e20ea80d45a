// SPDX-License-Identifier: Apache-2.0
// The form in which ranks hold the matrices A [R, I] and B [O..., R] of a low-rank adapter beside
// the weight W that it changes: nn/low_rank.h asks for the class of a weight and does not branch.
// Legend: R rank of the adapter, I inputs, O outputs; sizes of values are those of this rank's
// part.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/dropout.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// A strategy without state; shared by all threads.
class LowRankForm {
 public:
  virtual ~LowRankForm() = default;
  /// dropout(x) of the input of `weight`, of whose features each rank may hold a share. `key` is
  /// active. Throws Error{Unsupported} if the ranks hold unequal shares of the features.
  [[nodiscard]] virtual at::Tensor drop_input(const at::Tensor& x,
                                              ops::DropoutKey key,
                                              const ParamInfo& weight,
                                              const Param& a,
                                              const StepContext& context) const = 0;
  /// scale * B (A x) for this rank's outputs.
  [[nodiscard]] virtual at::Tensor product(const at::Tensor& x,
                                           const Param& a,
                                           const Param& b,
                                           double scale,
                                           StepContext& context) const = 0;
  /// The norms of the rows of W + scale B A for the outputs of B that this rank has: fp32 [O], no
  /// gradient. `held`: this rank's part of W, of the outputs of B only, [O..., I].
  [[nodiscard]] virtual at::Tensor row_norms(const at::Tensor& held,
                                             const ParamInfo& weight,
                                             const Param& a,
                                             const Param& b,
                                             double scale,
                                             StepContext& context) const = 0;
  /// The values of a magnitude, with a gradient of all samples.
  [[nodiscard]] virtual at::Tensor magnitude(const Param& vector, StepContext& context) const = 0;
  /// True if W + scale B A of this rank's part of W needs no other rank.
  [[nodiscard]] virtual bool merges() const = 0;
};

/// The form of the adapters of a weight in the layout of `context`.
const LowRankForm& low_rank_form(const Param& weight, const StepContext& context);
/// A weight that a grid of ranks holds in parts.
const LowRankForm& grid_low_rank_form();

}  // namespace tessera::nn
