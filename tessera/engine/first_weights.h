// SPDX-License-Identifier: Apache-2.0
// The same plan with other first weights.
#pragma once

#include "tessera/parallel/held.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

/// Engine::initialize_weights() then takes the values of `weights` instead of those of model.from
/// or of the seed.
planner::PlanWithData with_first_weights(const planner::PlanWithData& plan,
                                         parallel::FillRange weights);

}  // namespace tessera::engine
