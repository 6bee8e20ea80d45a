// SPDX-License-Identifier: Apache-2.0
// The ZeRO stage of a model, and what follows from it.
#pragma once

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Sets the stage of the plan, the residency of its weights and the stage of its reductions. Needs
/// Plan::shard_ranks and Plan::data_ranks.
void set_zero_stage(Plan& plan, int stage);
/// Takes the sizes of buckets and thresholds from the configuration, where "auto" is a number once
/// the model is known (resolve_auto_sizes()).
void set_zero_sizes(Plan& plan);

}  // namespace tessera::planner
