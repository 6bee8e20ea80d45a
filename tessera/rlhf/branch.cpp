// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/branch.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/generators.h"
#include "tessera/rlhf/ledger.h"
#include "tessera/rlhf/replay.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::rlhf {
namespace {

namespace fs = std::filesystem;

const json::Value* at_path(const json::Value& config, std::string_view section, const char* key) {
  const json::Value* const found = config.find(section);
  return key == nullptr || found == nullptr || !found->is_object() ? found : found->find(key);
}

void require_same(const planner::Plan& run,
                  const planner::Plan& next,
                  const char* section,
                  const char* key = nullptr) {
  const json::Value *before = at_path(run.resolved(), section, key),
                    *after = at_path(next.resolved(), section, key);
  const bool same = before == nullptr || after == nullptr ? before == after : *before == *after;
  TESSERA_REQUIRE(
      same,
      Config,
      fmt::format("a branch cannot change {}{}: it goes on from the weights and moments "
                  "of the run",
                  section,
                  key == nullptr ? "" : fmt::format(".{}", key)),
      "remove that --set");
}

/// Copies the lines of steps up to `step`.
void copy_metrics(const fs::path& run, const fs::path& out, std::int64_t step) {
  if (!fs::exists(run / "metrics.jsonl")) return;
  fs::copy_file(run / "metrics.jsonl", out / "metrics.jsonl");
  engine::drop_later_lines(out / "metrics.jsonl", step);
}

}  // namespace

BranchPlans branch_plans(const fs::path& run,
                         const fs::path& out,
                         const std::vector<std::string>& changes,
                         int ranks) {
  json::Value config = config_of_run(run);
  config::set_key(config, "run.dir", json::Value::string(out.string()), "--out");
  for (const std::string& change : changes) {
    // The options of a recorded configuration are those of its task.
    constexpr std::string_view kSection = "rl.";
    const bool of_task = change.starts_with(kSection);
    config::apply_override(config,
                           of_task ? "task.params." + change.substr(kSection.size()) : change);
  }
  BranchPlans plans{.run = plan_of_run(run, ranks),
                    .next = planner::make_plan(config, ranks, (run / "config.json").string())};
  TESSERA_REQUIRE(tasks::as_rl(plans.next.data().task.get()) != nullptr,
                  Config,
                  fmt::format("the branch is of the task {}", plans.next.data().task_options.type),
                  "remove the --set of task");
  TESSERA_REQUIRE(plans.next.data().task->extra_ranks() == 0,
                  Unsupported,
                  "not built yet: a branch with rl.overlap, whose first rollout would be another "
                  "policy's",
                  "--set rl.overlap=0");
  for (const char* section : {"model", "adapter", "tokenizer"})
    require_same(plans.run, plans.next, section);
  require_same(plans.run, plans.next, "optimizer", "type");
  // The checkpoint that is written records the options of the branch as those of its run.
  plans.run = planner::with(plans.run, plans.next.resolved());
  return plans;
}

void write_branch(const planner::PlanWithData& plan,
                  comm::World& world,
                  const std::shared_ptr<const data::Datasets>& data,
                  const fs::path& run,
                  std::int64_t step,
                  const fs::path& out,
                  const std::vector<std::string>& changes) {
  engine::Engine engine(plan, world, data);
  begin_replay(engine, run, step + 1);
  while (engine.step() < step)
    engine.train_step();
  engine.save(out / checkpoint::kFolderOfRun);
  engine.finish();
  if (world.is_leader()) {
    copy_metrics(run, out, step);
    copy_rollouts(run / "rollouts.jsonl",
                  out / "rollouts.jsonl",
                  step - tasks::as_rl(plan.data().task.get())->options().updates() + 1,
                  step - 1);
    json::Value list = json::Value::array({});
    for (const std::string& change : changes)
      list.push_back(json::Value::string(change));
    const json::Value from =
        json::Value::object({{"run", json::Value::string(fs::absolute(run).string())},
                             {"step", json::Value::integer(step)},
                             {"changes", std::move(list)}});
    files::write_atomic(out / "branch.json", from.dump(2) + "\n");
  }
  world.barrier(TESSERA_HERE("end of a branch"));
}

}  // namespace tessera::rlhf
