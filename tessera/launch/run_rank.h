// SPDX-License-Identifier: Apache-2.0
// What a rank of a launcher does for itself because no supervisor does it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/launch/launch.h"

namespace tessera::launch {

using Report = std::function<void(const std::vector<std::string>&)>;

/// From now on run_rank() calls `report` when the world broke, on the first rank that is not lost.
/// Once a process.
void report_from_ranks(Report report);

}  // namespace tessera::launch
