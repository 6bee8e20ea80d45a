// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/zero_stage.h"

namespace tessera::planner {

void set_zero_stage(Plan& plan, int stage) {
  const bool whole = plan.shard_ranks == 1 && plan.data_ranks > 1;
  plan.zero_stage = stage;
  plan.weight_layout.residency = stage == 0             ? parallel::Residency::Replicated
                                 : stage == 3 && !whole ? parallel::Residency::Sharded
                                                        : parallel::Residency::Whole;
  plan.reduction.stage = stage;
}

}  // namespace tessera::planner
