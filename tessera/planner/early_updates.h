// SPDX-License-Identifier: Apache-2.0
// The rules of zero_optimization.offload_optimizer.super_offload.
#pragma once

#include <optional>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Refuses early updates where they cannot be made (parallel/early_updates.h).
void check_early_updates(const TrainConfig& config,
                         config::Problems& problems,
                         const config::Origins& origins);
/// A note if the key has no effect, because ranks compute on the CPU.
std::optional<std::string> early_updates_note(const TrainConfig& config);

}  // namespace tessera::planner
