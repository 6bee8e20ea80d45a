// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/formula.h"

#include <fmt/format.h>

#include "tessera/engine/rl/estimators.h"
#include "tessera/losses/ppo.h"
#include "tessera/models/objective.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::engine {
namespace {

/// Returns how the completions of a rollout are made and learned.
std::string rollout_formula(const tasks::RlOptions& options) {
  std::string out = fmt::format(
      "rollout: {} of each prompt, {} of each rollout",
      options.samples == 1 ? "1 completion" : fmt::format("{} completions", options.samples),
      options.updates() == 1 ? "1 update" : fmt::format("{} updates", options.updates()));
  if (options.dynamic_rounds > 0) {
    out += fmt::format("; groups of equal rewards are replaced up to {} times",
                       options.dynamic_rounds);
  }
  if (options.truncated == tasks::Truncated::Mask)
    out += fmt::format("; completions of {} tokens without an end are left out of the loss",
                       options.max_new_tokens);
  return out;
}

}  // namespace

std::vector<std::string> formula_of(const tasks::Task& task, const data::DataOptions& data) {
  const std::string objective = task.objective();
  if (!models::objective_formulas().has(objective)) return {};
  std::vector<std::string> out =
      models::objective_formulas().get(objective)(task.objective_options(data));
  const tasks::Rl* const rl = tasks::as_rl(&task);
  if (rl == nullptr || out.empty()) return out;
  for (std::string& line : rl::advantage_formula(*rl))
    out.push_back(std::move(line));
  const tasks::RlOptions& options = rl->options();
  if (rl->has_critic())
    out.push_back("critic: " + losses::ppo_critic_formula(options.critic.clip_range) +
                  ", R = A + V");
  out.push_back(rollout_formula(options));
  return out;
}

}  // namespace tessera::engine
