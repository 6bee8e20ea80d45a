// SPDX-License-Identifier: Apache-2.0
// Which axes of the mesh cross between hosts, and what a user should be told about that.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

/// `text`: "pipeline and data parallelism cross between hosts, tensor parallelism stays inside";
/// empty for one host. `warnings`: one for each axis whose ranks wait for each other in every
/// layer, and that crosses although another number of slots or ranks would keep it inside.
struct HostLayoutNotes {
  std::string text;
  std::vector<std::string> warnings;
};

/// `ranks_per_host`: of every host but possibly the last one; the ranks of a host follow each
/// other.
HostLayoutNotes host_layout_notes(const Mesh& mesh, int ranks_per_host);

}  // namespace tessera::mesh
