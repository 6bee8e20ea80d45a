// SPDX-License-Identifier: Apache-2.0
// A parameter, or a tensor of its shape, assembled from the parts of tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Returns the view of a box of `whole`.
at::Tensor box_of(const at::Tensor& whole, const mesh::Box& box);

/// Returns the whole tensor of a parameter that the ranks of `group` share; `held`: what this rank
/// holds of it, flat, of any dtype. Memory: the parts of all ranks, and the whole. Collective over
/// `group`.
at::Tensor assembled(const ParamInfo& info,
                     const at::Tensor& held,
                     comm::World& world,
                     const comm::Group& group);

}  // namespace tessera::parallel
