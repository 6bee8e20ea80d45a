// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/eval_rl.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/rlhf/validation.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::cli {
namespace {

void print(const engine::EvalReport& report, const std::string& source, bool as_json) {
  Terminal terminal;
  if (!as_json) {
    terminal.line(fmt::format("{} | {} tokens | {}",
                              engine::metrics_text(report.metrics),
                              text::with_commas(report.tokens),
                              source));
    return;
  }
  json::Value out = json::Value::object();
  for (const engine::Metric& metric : report.metrics)
    out[metric.name] = json::Value::number(metric.mean);
  out["tokens"] = json::Value::integer(report.tokens);
  out["model"] = json::Value::string(source);
  terminal.data(out.dump());
}

/// The plan of the run that saved the checkpoint, for `ranks` ranks.
planner::PlanWithData plan_of(const engine::OpenModel& found, const RankFlags& words) {
  const checkpoint::Meta meta = checkpoint::Checkpoint(found.source).meta();
  // An adapter needs its base; other weights are in the checkpoint.
  json::Value config = meta.extra.find("base") != nullptr ? meta.config : *found.config;
  if (words.threads) {
    config::set_key(
        config, "run.threads_per_rank", json::Value::integer(*words.threads), "--threads");
  }
  config::set_key(config, "run.device", json::Value::string(words.device), "--device");
  const planner::Plan plan =
      planner::make_plan(config, ranks_of(words.ranks), found.source.string());
  // Nothing is trained, but schedules have a length.
  planner::Course course{.max_steps = plan.recipe().max_steps.value_or(meta.step + 1), .curve = {}};
  return planner::PlanWithData(plan, std::move(course));
}

}  // namespace

int eval_rl(const engine::OpenModel& found,
            const std::shared_ptr<const data::Dataset>& held_out,
            std::optional<std::int64_t> prompts,
            const RankFlags& ranks,
            bool as_json) {
  TESSERA_REQUIRE(!ranks.tensor,
                  Config,
                  "--tensor: a policy is evaluated in the layout of its run",
                  "leave it out; -n sets the number of ranks");
  const auto* const all = dynamic_cast<const tasks::Prompts*>(held_out.get());
  TESSERA_ASSERT(all != nullptr);
  const std::int64_t count = std::min(all->count(), prompts.value_or(all->count()));
  const planner::PlanWithData plan = plan_of(found, ranks);
  planner::check_memory(plan, launch::available_memory());
  return engine::run_ranks(plan, engine::log_failure, [&](comm::World& world) {
    const engine::EvalReport report =
        rlhf::validate_checkpoint(plan, world, found.source, *all, count);
    if (world.is_leader()) print(report, found.source.string(), as_json);
    if (world.is_leader()) require_output_written();
    world.barrier(TESSERA_HERE("end of the command"));
    return kExitOk;
  });
}

}  // namespace tessera::cli
