// SPDX-License-Identifier: Apache-2.0
// Memory of a plan for data that travels between hosts.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/planner/plan.h"

namespace tessera::planner {

/// Returns the bytes that the transport of a rank allocates for gradients and weights if there are
/// `host_ranks` ranks on each host, and all reductions and all gathers of a step are in progress at
/// once; for the stage that needs most. Messages between stages and operations of tensor and
/// context parallelism are not counted.
std::int64_t travel_bytes(const Plan& plan, int host_ranks);

/// A flat buffer of the weights of a stage.
struct TravelingBuffer {
  std::int64_t numel = 0, uses = 0;  ///< uses: blocks that have gradients for it
  bool trained = true, sharded = false;
};
/// The same for one stage. `gathered`: the maximum number of gathered elements of sharded weights.
std::int64_t travel_bytes(const Plan& plan,
                          int host_ranks,
                          std::span<const TravelingBuffer> buffers,
                          std::int64_t gathered);

}  // namespace tessera::planner
