// SPDX-License-Identifier: Apache-2.0
// The smallest offload with which a plan fits into memory: recomputation, then a higher ZeRO stage,
// then masters and states on a disk, then the weights and the gradients too. Each rung keeps those
// before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {

struct OffloadRung {
  std::string keys;  ///< what is set in addition to the rungs before: "zero_optimization.stage 3"
  MemoryEstimate need;
  OffloadBytes disk;
  std::string cost;  ///< what the rung costs in each step, compared with the rung before
  bool fits = false;
  /// One line: the keys, the memory of a rank, the bytes on the disk, the cost.
  [[nodiscard]] std::string text() const;
};

/// The rungs above the plan, up to the first that fits into 95 % of `available` bytes on the plan's
/// local ranks; the last one does not fit if none does. Rungs that the plan contains already, or
/// that its optimizer, device or other keys exclude, are left out. A stage that saves nothing, on
/// one rank, is set together with the rung that needs it. `folder`: the disk that is proposed. No
/// rung changes a bit of the training. Cost: one estimate_memory() for
/// each rung.
std::vector<OffloadRung> offload_ladder(const Plan& plan,
                                        std::uint64_t available,
                                        const std::string& folder);

/// The changes with which less rests in the memory of a GPU's host, as the fix of an error.
std::string less_on_host(const Plan& plan);

}  // namespace tessera::planner
