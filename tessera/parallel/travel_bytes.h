// SPDX-License-Identifier: Apache-2.0
// The memory of a stage for data that travels between hosts, and for messages in a host.
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

/// Returns the bytes that the transport of a rank on a CPU allocates besides gradients and weights,
/// which peers read where they are: for each group and channel on which it posts, and for copies
/// of what is not in memory that peers can read. `flow`: bytes of the largest flow between two
/// blocks. `index`: of the stage. Pure.
std::int64_t message_bytes(const PlannedStage& stage,
                           const Layout& layout,
                           int index,
                           std::int64_t flow);

}  // namespace tessera::parallel
