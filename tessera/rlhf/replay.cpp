// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/replay.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/tasks/rl/rl.h"
#include "tessera/text/small_file.h"

namespace tessera::rlhf {
namespace {

struct Recorded {
  std::optional<double> loss, grad_norm;
};

std::map<std::int64_t, Recorded> recorded_steps(const std::filesystem::path& run) {
  std::map<std::int64_t, Recorded> out;
  const std::filesystem::path path = run / "metrics.jsonl";
  if (!std::filesystem::exists(path)) return out;
  engine::for_each_metric(files::read(path), [&](const std::string&, const json::Value& line) {
    const json::Value *loss = line.find("loss"), *norm = line.find("grad_norm");
    if (loss == nullptr || norm == nullptr || !loss->is_number() || !norm->is_number()) return;
    out[line.find("step")->as_integer().value_or(0)] = {loss->as_double(), norm->as_double()};
  });
  return out;
}

/// Returns the newest checkpoint of a step before `step`.
std::optional<std::filesystem::path> before(const std::filesystem::path& run, std::int64_t step) {
  std::optional<std::filesystem::path> out;
  for (const std::filesystem::path& folder : checkpoint::found_at(run)) {
    if (checkpoint::Checkpoint(folder).meta().step < step) out = folder;
  }
  return out;
}

/// The configuration with a critic on all ranks, which changes no bit, if `ranks` lack its own.
json::Value without_ranks_beyond(json::Value config, int ranks) {
  json::Value* at = &config;
  for (const char* key : {"task", "params", "models", "critic"}) {
    at = at->is_object() ? at->find(key) : nullptr;
    if (at == nullptr) return config;
  }
  json::Value* const list = at->is_object() ? at->find("ranks") : nullptr;
  if (list == nullptr || !list->is_array()) return config;
  const bool beyond = std::ranges::any_of(list->items(), [&](const json::Value& rank) {
    return rank.as_integer().value_or(0) >= ranks;
  });
  if (beyond) *list = json::Value();
  return config;
}

}  // namespace

json::Value config_of_run(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "config.json";
  TESSERA_REQUIRE(std::filesystem::exists(path),
                  Format,
                  fmt::format("{} is not a run folder: it has no config.json", run.string()),
                  "name the run.dir of a training of the task rl");
  json::Value config = json::parse_strict(text::read_small_file(path), path.string());
  // The number of threads determines how sums are split.
  if (json::Value* const section = config.find("run"); section != nullptr && section->is_object()) {
    if (json::Value* const derived = section->find("derived");
        derived != nullptr && derived->is_array()) {
      std::erase_if(derived->items(), [](const json::Value& name) {
        return name.is_string() && name.as_string() == "run.threads_per_rank";
      });
    }
  }
  return config;
}

planner::Plan plan_of_run(const std::filesystem::path& run, int ranks) {
  planner::Plan plan = planner::make_plan(
      without_ranks_beyond(config_of_run(run), ranks), ranks, (run / "config.json").string());
  TESSERA_REQUIRE(tasks::as_rl(plan.data().task.get()) != nullptr,
                  Config,
                  fmt::format("{} is a run of the task {}, which keeps no rollouts",
                              run.string(),
                              plan.data().task_options.type),
                  "name a run of the task rl");
  return plan;
}

std::optional<std::int64_t> last_recorded_step(const std::filesystem::path& run) {
  const std::map<std::int64_t, Recorded> recorded = recorded_steps(run);
  if (recorded.empty()) return std::nullopt;
  return recorded.rbegin()->first;
}

void begin_replay(engine::Engine& engine, const std::filesystem::path& run, std::int64_t step) {
  if (const auto from = before(run, step)) {
    engine.load(checkpoint::Checkpoint(*from));
  } else {
    engine.initialize_weights();
  }
  engine.begin_experience(run, engine::Keeping::Replay);
}

void replay(const planner::PlanWithData& plan,
            comm::World& world,
            const std::shared_ptr<const data::Datasets>& data,
            const std::filesystem::path& run,
            std::int64_t step,
            const std::function<void(const ReplayedStep&)>& told) {
  const std::map<std::int64_t, Recorded> recorded = recorded_steps(run);
  engine::Engine engine(plan, world, data);
  begin_replay(engine, run, step);
  while (engine.step() < step) {
    ReplayedStep one{.report = engine.train_step(), .loss = {}, .grad_norm = {}};
    if (const auto found = recorded.find(one.report.step); found != recorded.end()) {
      one.loss = found->second.loss;
      one.grad_norm = found->second.grad_norm;
    }
    told(one);
  }
  engine.finish();
  world.barrier(TESSERA_HERE("end of a replay"));
}

}  // namespace tessera::rlhf
