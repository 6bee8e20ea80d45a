// SPDX-License-Identifier: Apache-2.0
// The key `tiling`: which weights are divided into tiles of rows, and how many.
#pragma once

#include "tessera/config/fields.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Sets model.rules.tiles by config.tiling, and reports what it cannot mean for the model, its
/// optimizer, and `gathers`: several data-parallel ranks gather weights for each other (ZeRO stage
/// 3 in memory). Does nothing without the key.
void plan_tiling(const TrainConfig& config,
                 bool gathers,
                 ModelPlan& model,
                 config::Problems& problems,
                 const config::Origins& origins);

}  // namespace tessera::planner
