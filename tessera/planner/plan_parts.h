// SPDX-License-Identifier: Apache-2.0
// All parts of a plan, for the code that makes one.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/inputs.h"
#include "tessera/config/json.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {

struct PlanParts {
  parallel::Layout layout;
  ModelPlan model;
  DataPlan data;
  Recipe recipe;
  RunPlan run;
  json::Value resolved;
  std::vector<std::string> notes;
  std::vector<Input> inputs;
};

}  // namespace tessera::planner
