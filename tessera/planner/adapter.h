// SPDX-License-Identifier: Apache-2.0
// Applies the section `adapter` to a plan's model and its initial weights.
#pragma once

#include "tessera/config/fields.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Adds the adapter of the configuration, if any, to the plan's model and sets Plan::adapter and
/// Plan::base. Reports settings that conflict with an adapter in `problems`. Throws the errors of
/// models::find_adapter.
void plan_adapter(Plan& plan, config::Problems& problems, const config::Origins& origins);

/// Replaces the initial weights of the base in Plan::weights by those of the adapted model. A base
/// without a source is initialized from the seed and is saved in its checkpoints.
void plan_adapter_weights(Plan& plan);

}  // namespace tessera::planner
