// SPDX-License-Identifier: Apache-2.0
// A rank of a job that does not run: it knows its mesh and transfers nothing. It is used for shapes
// of meta tensors.
#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"

namespace tessera::comm {

/// Every collective and message of this world completes at once and leaves its buffers unchanged.
/// Its regions have no memory, and tensor_over() returns meta tensors for them. Used only on the
/// caller's thread.
std::unique_ptr<World> shape_world(const mesh::Mesh& mesh, int rank);

}  // namespace tessera::comm
