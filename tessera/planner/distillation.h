// SPDX-License-Identifier: Apache-2.0
// Checks the section `distill` against the rest of a plan.
#pragma once

#include "tessera/config/fields.h"

namespace tessera::planner {

struct Plan;

/// Checks the section against the rest of the plan, whose model is known, and counts the memory of
/// the teacher. Opens the teacher's description, and none of its weights.
void plan_distillation(Plan& plan, config::Problems& problems, const config::Origins& origins);

}  // namespace tessera::planner
