// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/model_task.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"

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

void require_generation(const models::ObjectiveChoice& objective, const std::string& path) {
  using models::Predicts;
  const Predicts predicts = models::traits_of(objective.name).predicts;
  if (predicts == Predicts::Other || models::continues_texts(objective.name)) return;
  const bool has_labels = predicts == Predicts::TokenClass || predicts == Predicts::TextClass ||
                          predicts == Predicts::ImageClass;
  throw Error(
      Error::Kind::Unsupported,
      fmt::format("{}: a model with the objective {} does not generate text", path, objective.name),
      has_labels ? fmt::format("its predictions: tessera predict {} FILE", path)
                 : "name a model that continues texts, with the objective causal_lm");
}

void use_thresholds(const models::ObjectiveChoice& objective, json::Value& task_params) {
  const json::Value* const thresholds = objective.options.find("thresholds");
  if (thresholds == nullptr) return;
  if (task_params.is_null()) task_params = json::Value::object();
  task_params["thresholds"] = *thresholds;
}

}  // namespace tessera::cli
