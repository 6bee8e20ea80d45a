// SPDX-License-Identifier: Apache-2.0
// Adds the adapter of a configuration to a plan's model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/adapter.h"
#include "tessera/planner/model_plan.h"

namespace tessera::parallel {
struct Layout;
}

namespace tessera::planner {

/// Adds the adapter that `options` describe, if they do, to the model and sets its members adapter,
/// base and rules; completes `options` by those of adapter.from, and the prefetching of a layout
/// whose base is packed. Reports settings that conflict with an adapter in `problems`, and notes
/// for the user in `notes`. Throws the errors of models::find_adapter.
void plan_adapter(models::AdapterOptions& options,
                  ModelPlan& model,
                  parallel::Layout& layout,
                  std::vector<std::string>& notes,
                  config::Problems& problems,
                  const config::Origins& origins);
/// Replaces the initial weights of the base by those of the adapted model; the adapter's are those
/// of the folder `from`, or new if it is empty. A base without a source is initialized from the
/// seed and is saved in its checkpoints.
void plan_adapter_weights(ModelPlan& model, const std::string& from, std::uint64_t seed);

}  // namespace tessera::planner
