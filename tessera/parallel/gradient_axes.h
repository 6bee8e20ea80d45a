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

/// Returns this rank's sum of a flat group's gradient, in the accumulation dtype. It may be changed
/// as long as the tensor exists; see RestingSums.
using SumOfGroup = std::function<at::Tensor(std::size_t group)>;

/// Prepares the channels of the messages of add_over_stages() where the transport can. Collective
/// over the stages.
void open_channels_of_tied(comm::World& world, ModelInstance& model);
/// Sums the gradients of a trainable group with a tied parameter that several stages use. The stage
/// of the first use adds the uses in the order of their blocks, as one rank would, and sends the
/// sum to the other stages. `sums`: the sums of this stage's uses; the first one receives the
/// result. Collective over the stages.
void add_over_stages(comm::World& world,
                     const FlatGroup& group,
                     const std::vector<at::Tensor>& sums);
/// Sums the gradients of parameters that tensor-parallel ranks hold whole and used only on their
/// own tokens. Collective over the tensor-parallel group.
void add_over_sequence(comm::World& world, ModelInstance& model, const SumOfGroup& sum);
/// Sums the gradients of the trainable parameters that context-parallel ranks used only on their
/// own tokens: all, except for those of experts that are divided among these ranks. Collective over
/// the context-parallel group.
void add_over_context(comm::World& world, ModelInstance& model, const SumOfGroup& sum);

}  // namespace tessera::parallel
