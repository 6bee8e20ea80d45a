// SPDX-License-Identifier: Apache-2.0
// Small trainings of the task rl: prompts, and what they leave.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/train_runs.h"

#include <ATen/Parallel.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {

/// Records of twelve prompts of one to three letters.
inline std::string some_prompts() {
  std::string out;
  for (int i = 0; i < 12; ++i)
    out += R"({"prompt": ")" +
           std::string(static_cast<std::size_t>(1 + i % 3), static_cast<char>('a' + i)) +
           R"(", "answer": "x"})" + "\n";
  return out;
}

/// A tiny policy that answers `prompts` lines of records; `rl`: parameters of the task.
inline TinyRun reinforcing(const std::string& prompts, const std::string& rl) {
  TinyRun run;
  const std::filesystem::path file = run.folder() / "prompts.jsonl";
  std::ofstream(file) << prompts;
  run.set("data.train", "[\"" + file.string() + "\"]")
      .set("data.validation_fraction", "0")
      .set("eval.every", "0")
      .set("model.dropout", "0")
      .set("task", R"({"type": "rl", "params": )" + rl + "}");
  return run;
}

/// Trains up to step `steps`, from the beginning or from `resume`; the ledger lies in `run_dir`,
/// and checkpoints of the steps in `save_at` in `root`.
struct RlRun {
  std::int64_t steps = 0;
  std::filesystem::path run_dir = {}, root = {}, resume = {};
  std::vector<std::int64_t> save_at = {};
  std::function<void(const engine::StepReport&)> see = {};  ///< called on the leader
  /// Every rank trains in the world that this returns for the rank's own world.
  std::function<std::unique_ptr<comm::World>(comm::World&)> make_world = {};
};
inline Trace train(const TinyRun& run, const Layout& layout, const RlRun& how) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  const files::TempDir own;
  const std::filesystem::path root = how.root.empty() ? own.path() : how.root;
  Trace trace;
  comm::run_threads(plan.mesh(), [&](comm::World& of_rank) {
    at::set_num_threads(1);
    const std::unique_ptr<comm::World> made = how.make_world ? how.make_world(of_rank) : nullptr;
    comm::World& world = made ? *made : of_rank;
    engine::Engine engine(plan, world, data);
    if (how.resume.empty()) {
      engine.initialize_weights();
    } else {
      engine.load(checkpoint::Checkpoint(how.resume));
    }
    engine.begin_experience(how.run_dir);
    Trace mine;
    while (engine.step() < how.steps) {
      const engine::StepReport report = engine.train_step();
      mine.losses.push_back(report.loss);
      mine.grad_norms.push_back(report.grad_norm);
      mine.metrics.push_back(bits_of(report.metrics));
      if (how.see && world.is_leader()) how.see(report);
      if (std::ranges::find(how.save_at, report.step) != how.save_at.end()) engine.save(root);
    }
    const std::filesystem::path saved = engine.save(own.path() / "end");
    if (world.is_leader()) {
      mine.digest = checkpoint::Checkpoint(saved).digest();
      trace = std::move(mine);
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return trace;
}

/// Saves a reward model of the tiny size in a folder; `adapter`: the section of that name.
inline void save_reward_model(const std::filesystem::path& root,
                              const std::string& seed = "5",
                              const std::string& adapter = "{}") {
  TinyRun run;
  const std::filesystem::path file = run.folder() / "pairs.jsonl";
  std::ofstream pairs(file);
  for (int i = 0; i < 8; ++i)
    pairs << R"({"prompt": "q", "chosen": "a", "rejected": "b"})"
          << "\n";
  pairs.close();
  run.set("data.train", "[\"" + file.string() + "\"]")
      .set("data.validation_fraction", "0.25")
      .set("eval.every", "0")
      .set("model.dropout", "0")
      .set("trainer.seed", seed)
      .set("task", "\"reward\"");
  if (adapter != "{}") run.set("adapter", adapter);
  (void)run.train({.stage = 0}, 1, root);
}

/// The means of a metric of every step of a training on one rank.
inline std::map<std::string, std::vector<double>> metrics_of(const TinyRun& run,
                                                             const Layout& layout,
                                                             std::int64_t steps) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  std::map<std::string, std::vector<double>> out;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine.begin_experience();
    while (engine.step() < steps) {
      const engine::StepReport report = engine.train_step();
      if (!world.is_leader()) continue;
      for (const engine::Metric& metric : report.metrics)
        out[metric.name].push_back(metric.mean);
    }
    engine.finish();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return out;
}

}  // namespace tessera::test
