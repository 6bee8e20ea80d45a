// SPDX-License-Identifier: Apache-2.0
// Numbers of which each rank has made some, on every rank.
#pragma once

#include <vector>

#include "tessera/comm/world.h"

namespace tessera::engine {

/// Sums over the ranks that read different samples, some numbers at a time: each value is one
/// rank's, and the others have 0. `what`: for reports. Collective; as many values on every rank.
void share_values(comm::World& world, std::vector<double>& values, const char* what);

}  // namespace tessera::engine
