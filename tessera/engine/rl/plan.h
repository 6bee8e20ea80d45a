// SPDX-License-Identifier: Apache-2.0
// What a plan of the task rl needs beside a training: what is refused, and the memory of all
// models.
#pragma once

#include "tessera/planner/train_config.h"

namespace tessera::engine::rl {

/// Of a plan of the task rl, before the ranks start: refuses what is not built, and models that are
/// not there (Error{Config}, Error{Unsupported}, Error{Format}); sets Plan::beside to what
/// reference, reward models, critic, rollout and cache need, and adds a note that says so. Other
/// plans stay.
void settle_plan(planner::Plan& plan);

}  // namespace tessera::engine::rl
