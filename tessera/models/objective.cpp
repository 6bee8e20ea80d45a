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

bool continues_texts(const std::string& objective) {
  const bool kept = kept_objectives().has(objective);
  const std::string name = kept ? kept_objectives().get(objective).name : objective;
  return name == "causal_lm" || name == "prefix_lm" || name == "seq2seq";
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
