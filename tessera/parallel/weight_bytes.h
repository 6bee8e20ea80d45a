// SPDX-License-Identifier: Apache-2.0
// The memory of the working weights of a stage: at rest, as their strategies keep them
// (working_weights.h), and gathered, in the order of gather_order.h.
#pragma once

#include <cstdint>

#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/packed_weights.h"
#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {

struct WeightBytes {
  std::int64_t resting = 0;  ///< while nothing is gathered
  /// Parts in the memory of a device's host, which `resting` does not count.
  std::int64_t on_host = 0;
  std::int64_t disk = 0;      ///< of parts that rest there, in whole blocks
  std::int64_t buffers = 0;   ///< of `resting`, the buffers of these parts
  std::int64_t staged = 0;    ///< pinned memory between these and a device
  std::int64_t updated = 0;   ///< of these, what an update reads and writes
  std::int64_t read = 0;      ///< from the disk for the blocks of a step, besides the update
  std::int64_t gathered = 0;  ///< at most, in addition, for `elements`
  std::int64_t elements = 0;  ///< the highest number of gathered elements in a step
};
/// For a rank of the stage. Pure.
WeightBytes weight_bytes(const PlannedStage& stage,
                         const GatherOptions& gather,
                         std::int64_t accumulation,
                         const PackingOptions& packing);

}  // namespace tessera::parallel
