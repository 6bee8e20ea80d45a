// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/model_task.h"

#include "tessera/tasks/model_classes.h"

namespace tessera::cli {

tasks::TaskOptions task_options_of(const models::ObjectiveChoice& objective, bool labelled) {
  const json::Value* const problem = objective.options.find("problem_type");
  const std::string kind = problem != nullptr ? problem->as_string() : "";
  tasks::TaskOptions out;
  out.params = json::Value::object();
  if (objective.name == "sequence_classification") {
    out.type = kind == "regression" ? "regression" : "classify";
    if (kind == "multi_label_classification")
      out.params["multi_label"] = json::Value::boolean(true);
    if (objective.options.find("heads") != nullptr) {
      out.params["heads"] = tasks::fields_of_heads(objective.options);
    } else if (labelled && kind != "regression") {
      out.params["labels"] = tasks::names_of_classes(objective.options);
    }
    if (kind == "regression") {
      const json::Value* const count = objective.options.find("num_labels");
      if (count != nullptr) out.params["numbers"] = *count;
    }
    use_thresholds(objective, out.params);
  } else if (objective.name == "token_classification") {
    out.type = "tag";
    if (labelled) out.params["labels"] = tasks::names_of_classes(objective.options);
  } else if (objective.name == "image_classification") {
    out.type = "image_classify";
    out.params["preprocessor"] = json::Value::string("default");
    if (labelled) out.params["labels"] = tasks::names_of_classes(objective.options);
  }
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
