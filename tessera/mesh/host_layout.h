// SPDX-License-Identifier: Apache-2.0
// Finds the axes of the mesh that cross between hosts, and makes notes about them for the user.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

/// `text`: "pipeline and data parallelism cross between hosts, tensor parallelism stays inside";
/// empty for one host. `warnings`: one for each axis that communicates in every layer and crosses
/// between hosts although another number of slots or ranks would avoid it.
struct HostLayoutNotes {
  std::string text;
  std::vector<std::string> warnings;
};

/// `ranks_per_host`: number on every host, except possibly the last one; the ranks of a host are
/// contiguous.
HostLayoutNotes host_layout_notes(const Mesh& mesh, int ranks_per_host);

/// Returns the largest size of groups of neighbouring data-parallel ranks that are each on one
/// host; it divides the number of data-parallel ranks. `mesh`: with any such groups, or none.
int group_of_host(const Mesh& mesh, int ranks_per_host);

}  // namespace tessera::mesh
