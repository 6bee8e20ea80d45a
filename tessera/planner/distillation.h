// SPDX-License-Identifier: Apache-2.0
// Checks the teacher of a model, and counts its memory.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/config/fields.h"
#include "tessera/models/distillation.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"

namespace tessera::planner {

/// Checks the section `distill` against the model and its data, and sets teacher_bytes. `working`:
/// dtype of the teacher's weights. Opens the teacher's description, and none of its weights.
void plan_distillation(const models::DistillOptions& options,
                       const DataPlan& data,
                       DType working,
                       ModelPlan& model,
                       std::vector<std::string>& notes,
                       config::Problems& problems,
                       const config::Origins& origins);

}  // namespace tessera::planner
