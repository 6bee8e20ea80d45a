// SPDX-License-Identifier: Apache-2.0
// The memory of a stage for data that travels between hosts.
#pragma once

#include <cstdint>

#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {

/// Returns the bytes that the transport of a rank allocates for gradients and weights if there are
/// `host_ranks` ranks on each host, and all reductions and all gathers of a step are in progress at
/// once. `gathered`: the highest number of gathered elements of sharded weights. Messages between
/// stages and operations of tensor and context parallelism are not counted. Pure.
std::int64_t travel_bytes(const PlannedStage& stage,
                          const Layout& layout,
                          int host_ranks,
                          std::int64_t gathered);

}  // namespace tessera::parallel
