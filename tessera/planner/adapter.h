// SPDX-License-Identifier: Apache-2.0
// The section `adapter`: what it makes of a plan's model and of its first weights.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/config/fields.h"
#include "tessera/models/adapter.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Gives the plan's model the adapter that its configuration asks for, if any: then Plan::adapter
/// and Plan::base are there. Checks what stands against it. Errors as models::find_adapter.
void plan_adapter(Plan& plan, config::Problems& problems, const config::Origins& origins);

/// The plan's first weights, of those of its base: in Plan::weights those of the adapted model. A
/// base without a source begins from the seed, and belongs to its checkpoints.
void plan_adapter_weights(Plan& plan);

/// Tells two models apart by samples of their weights: the same for every format that holds the
/// same numbers. Cost: some kilobytes of every parameter.
std::string fingerprint_of(const models::Resolved& model, const models::WeightSource& weights);

}  // namespace tessera::planner
