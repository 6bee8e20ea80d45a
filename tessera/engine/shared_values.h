// SPDX-License-Identifier: Apache-2.0
// Gives every rank numbers of which each rank has computed some.
#pragma once

#include <vector>

#include "tessera/comm/world.h"

namespace tessera::engine {

/// Sums over the ranks that read different samples, some numbers at a time: one rank has each
/// value, and the others have 0. `what`: for reports. Collective; all ranks must have the same
/// number of values.
void share_values(comm::World& world, std::vector<double>& values, const char* what);
/// Like the function above, over all ranks, including ranks that read the same samples.
void share_with_all(comm::World& world, std::vector<double>& values, const char* what);

}  // namespace tessera::engine
