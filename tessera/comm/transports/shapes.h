// SPDX-License-Identifier: Apache-2.0
// A rank of a job that does not run: it knows its mesh and transfers nothing. Blocks run with it on
// meta tensors, for shapes, memory and costs.
#pragma once

#include <memory>
#include <vector>

#include "tessera/comm/cost.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"

namespace tessera::comm {

/// Every collective and message of this world completes at once and leaves its buffers unchanged;
/// it is recorded instead, from its spans, which need no memory. Its regions have no memory, and
/// tensor_over() returns meta tensors for them. Used only on the caller's thread.
std::unique_ptr<World> shape_world(const mesh::Mesh& mesh, int rank);
/// The operations that the rank of a shape_world() has posted since the last call, equal operations
/// together.
std::vector<Posted> take_posted(World& world);

}  // namespace tessera::comm
