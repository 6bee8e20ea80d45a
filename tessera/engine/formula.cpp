// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/formula.h"

#include <utility>

#include "tessera/engine/experience.h"
#include "tessera/models/objective.h"

namespace tessera::engine {
std::vector<std::string> formula_of(const tasks::Task& task, const data::DataOptions& data) {
  const std::string objective = task.objective();
  if (!models::objective_formulas().has(objective)) return {};
  std::vector<std::string> out =
      models::objective_formulas().get(objective)(task.objective_options(data));
  const ExperienceKind* const kind = experience_of(&task);
  if (kind == nullptr || out.empty()) return out;
  for (std::string& line : kind->formula(task))
    out.push_back(std::move(line));
  return out;
}

}  // namespace tessera::engine
