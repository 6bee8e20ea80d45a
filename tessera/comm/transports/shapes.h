// SPDX-License-Identifier: Apache-2.0
// A rank of a job that does not run: it knows its mesh and moves nothing. What is asked of it are
// shapes, of meta tensors.
#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"

namespace tessera::comm {

/// Every collective and message of this world is complete at once and leaves its buffers as they
/// are. Its regions have no memory, and tensor_over() makes meta tensors of them. Threads: that of
/// the caller.
std::unique_ptr<World> shape_world(const mesh::Mesh& mesh, int rank);

}  // namespace tessera::comm
