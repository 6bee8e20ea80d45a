// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/model_task.h"

#include <cstdint>
#include <utility>

namespace tessera::cli {
namespace {

/// The names of the labels, which are their ids if they have none.
json::Value names_of_labels(const models::ObjectiveChoice& objective) {
  json::Value out = json::Value::array();
  for (const std::string& name : label_names(objective))
    out.push_back(json::Value::string(name));
  const json::Value* const count = objective.options.find("num_labels");
  const std::int64_t labels = count != nullptr ? count->as_integer().value_or(0) : 0;
  for (std::int64_t id = std::ssize(out.items()); id < labels; ++id)
    out.push_back(json::Value::string(std::to_string(id)));
  return out;
}

/// {"topic": [labels], ...} of the heads of an objective.
json::Value fields_of_heads(const json::Value& heads) {
  json::Value out = json::Value::object();
  if (!heads.is_array()) return out;
  for (const json::Value& head : heads.items()) {
    const json::Value* const name = head.is_object() ? head.find("name") : nullptr;
    const json::Value* const labels = head.is_object() ? head.find("labels") : nullptr;
    if (name != nullptr && name->is_string() && labels != nullptr) out[name->as_string()] = *labels;
  }
  return out;
}

}  // namespace

tasks::TaskOptions task_options_of(const models::ObjectiveChoice& objective, bool labelled) {
  const json::Value* const problem = objective.options.find("problem_type");
  const std::string kind = problem != nullptr ? problem->as_string() : "";
  tasks::TaskOptions out;
  out.params = json::Value::object();
  if (objective.name == "sequence_classification") {
    out.type = kind == "regression" ? "regression" : "classify";
    if (kind == "multi_label_classification")
      out.params["multi_label"] = json::Value::boolean(true);
    if (const json::Value* const heads = objective.options.find("heads")) {
      out.params["heads"] = fields_of_heads(*heads);
    } else if (labelled && kind != "regression") {
      out.params["labels"] = names_of_labels(objective);
    }
    if (kind == "regression") {
      const json::Value* const count = objective.options.find("num_labels");
      if (count != nullptr) out.params["numbers"] = *count;
    }
    use_thresholds(objective, out.params);
  } else if (objective.name == "token_classification") {
    out.type = "tag";
    if (labelled) out.params["labels"] = names_of_labels(objective);
  } else if (objective.name == "image_classification") {
    out.type = "image_classify";
    out.params["preprocessor"] = json::Value::string("default");
    if (labelled) out.params["labels"] = names_of_labels(objective);
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
