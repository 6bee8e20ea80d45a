// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over ranks that are not data-parallel: pipeline stages that share a tied
// parameter, and ranks that share the tokens of a sample.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// This rank's sum of a flat group's gradient, in the type that is accumulated.
using SumOfGroup = std::function<const at::Tensor&(std::size_t group)>;

/// Tied parameters of a trainable group whose uses lie on several stages: the stage of the first
/// use adds the uses in the order of their blocks, as one rank would, and sends the sum to the
/// other stages. `sums`: of this stage's uses; the first one receives the result. Collective over
/// the stages.
void add_over_stages(comm::World& world,
                     const FlatGroup& group,
                     const std::vector<at::Tensor>& sums);
/// Parameters that tensor-parallel ranks hold whole, and used on their own tokens alone. Collective
/// over the tensor-parallel group.
void add_over_sequence(comm::World& world, ModelInstance& model, const SumOfGroup& sum);
/// All trainable parameters, which context-parallel ranks used on their own tokens alone.
/// Collective over the context-parallel group.
void add_over_context(comm::World& world, ModelInstance& model, const SumOfGroup& sum);

}  // namespace tessera::parallel
