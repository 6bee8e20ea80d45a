// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objective.h"

#include <utility>

namespace tessera::models {

Registry<ObjectiveFactory>& objectives() {
  static Registry<ObjectiveFactory> registry("objective");
  return registry;
}

Registry<KeptObjective>& kept_objectives() {
  static Registry<KeptObjective> registry("objective");
  return registry;
}

Registry<ObjectiveFormula>& objective_formulas() {
  static Registry<ObjectiveFormula> registry("objective");
  return registry;
}

Registry<ObjectiveTraits>& objective_traits() {
  static Registry<ObjectiveTraits> registry("objective");
  return registry;
}

ObjectiveTraits traits_of(const std::string& objective) {
  if (objective_traits().has(objective)) return objective_traits().get(objective);
  if (!kept_objectives().has(objective)) return {};
  const std::string& kept = kept_objectives().get(objective).name;
  return {.predicts = objective_traits().get(kept).predicts};
}

bool continues_texts(const std::string& objective) {
  const Predicts predicts = traits_of(objective).predicts;
  return predicts == Predicts::NextToken || predicts == Predicts::NextTokenOfPrefix ||
         predicts == Predicts::AnswerToken;
}

bool has_new_head(const std::string& objective) {
  const Predicts predicts = traits_of(objective).predicts;
  return predicts == Predicts::TokenClass || predicts == Predicts::TextClass ||
         predicts == Predicts::TokenValue;
}

nn::Model with_objective(Trunk trunk, std::string_view objective, const json::Value& options) {
  config::Problems problems;
  config::Origins origins;
  nn::BlockSpec head = objectives().get(objective)(trunk.output, options, problems, origins);
  problems.raise();
  nn::Model model{.blocks = std::move(trunk.blocks)};
  model.blocks.push_back(std::move(head));
  return model;
}

}  // namespace tessera::models
