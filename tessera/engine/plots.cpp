// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/plots.h"

#include <string>
#include <utility>

#include "tessera/base/files.h"
#include "tessera/engine/metrics.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {

std::vector<report::CurvePanel> rollout_panels(const std::filesystem::path& metrics) {
  const TermHistory terms = read_terms(metrics);
  std::vector<report::CurvePanel> out;
  const auto add = [&](report::CurvePanel& to, const std::string& term, std::string name) {
    const auto found = terms.find(term);
    if (found != terms.end()) to.curves.push_back({std::move(name), found->second});
  };
  const auto keep = [&](report::CurvePanel panel) {
    if (!panel.curves.empty()) out.push_back(std::move(panel));
  };

  report::CurvePanel reward{.title = "reward of a completion"};
  add(reward, "terms.reward", "reward");
  add(reward, "eval_terms.reward", "held out");
  const std::string parts = "terms.reward/";
  for (const auto& [term, points] : terms) {
    if (term.starts_with(parts)) reward.curves.push_back({term.substr(parts.size()), points});
  }
  keep(std::move(reward));
  struct Quantities {
    const char* title;
    std::vector<const char*> terms;
  };
  for (const Quantities& one : std::vector<Quantities>{
           {"divergence from the reference (nats a token)", {"kl", "kl_reference"}},
           {"entropy (nats a token)", {"entropy"}},
           {"length of a completion (tokens)", {"length"}},
           {"shares", {"clip_share", "truncated", "equal_groups", "repetition"}},
           {"explained variance of the critic", {"explained_variance"}}}) {
    report::CurvePanel panel{.title = one.title};
    for (const char* const term : one.terms)
      add(panel, std::string("terms.") + term, term);
    keep(std::move(panel));
  }
  return out;
}

void write_plots(const planner::Plan& plan, const std::filesystem::path& run_dir) {
  const std::filesystem::path metrics = run_dir / "metrics.jsonl";
  report::write_loss_plot(run_dir / "loss.svg", read_losses(metrics));
  if (planner::task_of(plan) == nullptr || !planner::task_of(plan)->writes_answers()) return;
  const std::vector<report::CurvePanel> panels = rollout_panels(metrics);
  if (!panels.empty()) files::write_atomic(run_dir / "rollouts.svg", report::panels_plot(panels));
}

}  // namespace tessera::engine
