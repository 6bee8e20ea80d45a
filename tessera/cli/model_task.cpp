// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/model_task.h"

namespace tessera::cli {

tasks::TaskOptions task_options_of(const models::ObjectiveChoice& objective, bool labelled) {
  const auto of_model = tasks::task_of_objective(objective.name).of_model;
  if (of_model == nullptr)
    return {.type = tasks::TaskOptions().type, .params = json::Value::object()};
  tasks::TaskOptions out = of_model(objective.options, labelled);
  use_thresholds(objective, out.params);
  return out;
}

std::vector<std::string> label_names(const models::ObjectiveChoice& objective) {
  std::vector<std::string> out;
  const json::Value* const names = objective.options.find("labels");
  if (names == nullptr || !names->is_array()) return out;
  for (const json::Value& name : names->items())
    out.push_back(name.as_string());
  return out;
}

void use_thresholds(const models::ObjectiveChoice& objective, json::Value& task_params) {
  const json::Value* const thresholds = objective.options.find("thresholds");
  if (thresholds == nullptr) return;
  if (task_params.is_null()) task_params = json::Value::object();
  task_params["thresholds"] = *thresholds;
}

}  // namespace tessera::cli
