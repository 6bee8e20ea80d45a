// SPDX-License-Identifier: Apache-2.0
// Rules between experts and the layout: parallel.expert, and what the other forms of parallelism
// require of sparse layers.
#pragma once

#include "tessera/config/fields.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {

/// Number of ranks among which experts are divided: parallel.expert, or 1 where the data-parallel
/// ranks of `layout` cannot be divided by it, which check_expert_parallel() reports.
int divided_experts(const TrainConfig& config, const parallel::Layout& layout);

/// Checks what the layout requires of the experts of the model. `data_ranks`, `shard_ranks`: of the
/// layout; 0: unknown.
void check_expert_parallel(const TrainConfig& config,
                           const CheckedModel& checked,
                           const parallel::Layout& layout,
                           config::Problems& problems,
                           const config::Origins& origins);

}  // namespace tessera::planner
