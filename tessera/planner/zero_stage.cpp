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

void set_zero_sizes(Plan& plan) {
  const ZeroOptions& zero = plan.config.zero_optimization;
  plan.weight_layout.persistence_threshold =
      zero.stage3_param_persistence_threshold.value_or(parallel::kPersistenceThreshold);
  plan.gather.prefetch = zero.stage3_prefetch_bucket_size;
  plan.reduction.bucket = zero.reduce_bucket_size.value_or(parallel::ReductionOptions().bucket);
}

}  // namespace tessera::planner
