// SPDX-License-Identifier: Apache-2.0
// A plan under construction: what could be read from a configuration, what follows from it, and all
// its errors. make_plan() throws the errors; `tessera config explain` shows them.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/inputs.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/key_dialect.h"
#include "tessera/models/model_source.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/auto_values.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

struct PlanParts;

struct Draft {
  int ranks = 1;       ///< as asked for
  TrainConfig config;  ///< the configuration with defaults, later with numbers that follow
  // The parts of the plan; make_plan() adds what is only copied from `config`.
  parallel::Layout layout;
  ModelPlan model;
  DataPlan data;
  Recipe recipe;
  RunPlan run;
  std::vector<std::string> notes;
  std::vector<Input> inputs;
  json::Value written;  ///< the configuration with current key names, complete
  config::Problems problems;
  config::Origins origins;
  std::vector<config::TakenKey> accepted;  ///< other programs' keys that have no effect here
  std::vector<AutoValue> automatic;
  std::vector<std::string> derived;  ///< keys that follow from others and from the ranks
  std::optional<models::ModelSource>
      source;                        ///< of model.from, or the teacher that gives its layers
  std::vector<std::int64_t> layers;  ///< the teacher's layers with which the model begins
  /// The first failure that is not an error of the configuration: a missing file, a damaged
  /// checkpoint.
  std::exception_ptr failure;
};

/// Never throws for errors in the configuration. Without `model`, nothing is resolved that needs
/// the model or its tokenizer. `own` replaces the section `model`.
Draft make_draft(const json::Value& source,
                 int ranks,
                 const std::string& name_of_file,
                 bool model = true,
                 const nn::Model* own = nullptr);

/// Every key with its value, as far as the draft was completed.
json::Value resolved_config(const Draft& draft, bool model = true);

/// The parts of a plan, without those of its first weights.
PlanParts parts_of(const Draft& draft);

}  // namespace tessera::planner
