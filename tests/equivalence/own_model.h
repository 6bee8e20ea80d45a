// SPDX-License-Identifier: Apache-2.0
// Trains a program's own list of blocks, or any plan, in any layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

#include "support/train_runs.h"

#include <ATen/Parallel.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/nn/block.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {

/// Trains the plan, saves into `folder`, and doesn't evaluate.
inline Trace train_plan(const planner::Plan& made,
                        std::int64_t steps,
                        const std::filesystem::path& folder) {
  engine::prepare_process(1);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  Trace trace;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    Trace mine;
    while (engine.step() < steps) {
      const engine::StepReport report = engine.train_step();
      mine.losses.push_back(report.loss);
      mine.grad_norms.push_back(report.grad_norm);
      mine.metrics.push_back(bits_of(report.metrics));
    }
    const std::filesystem::path saved = engine.save(folder);
    if (world.is_leader()) {
      mine.digest = checkpoint::Checkpoint(saved).digest();
      trace = std::move(mine);
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return trace;
}

/// Trains `model` for `steps` steps on the text of `run`, then saves into `save`.
inline Trace train_own(const nn::Model& model,
                       const TinyRun& run,
                       const Layout& layout,
                       std::int64_t steps = 3,
                       const std::filesystem::path& save = {}) {
  engine::prepare_process(1);
  json::Value source = json::parse(R"({"data": {"sequence_length": 16},
      "zero_optimization": {"stage3_param_persistence_threshold": 0},
      "trainer": {"seed": 5}, "run": {"threads_per_rank": 1}})",
                                   "own.json");
  source["trainer"]["max_steps"] = json::Value::integer(steps);
  source["data"]["train"] = json::Value::string((run.folder() / "text.txt").string());
  source["train_micro_batch_size_per_gpu"] = json::Value::integer(layout.micro_batch);
  source["gradient_accumulation_steps"] = json::Value::integer(layout.accumulation);
  source["zero_optimization"]["stage"] = json::Value::integer(layout.stage);
  if (!layout.pipeline.empty())
    source["parallel"]["pipeline"] = json::parse(layout.pipeline, "pipeline");
  if (layout.tensor > 1) {
    source["parallel"]["tensor"]["size"] = json::Value::integer(layout.tensor);
    source["parallel"]["sequence"] = json::Value::boolean(layout.sequence);
  }
  if (layout.context > 1) {
    source["parallel"]["context"]["size"] = json::Value::integer(layout.context);
    source["parallel"]["context"]["mode"] = json::Value::string(layout.context_mode);
  }
  const files::TempDir own;
  return train_plan(planner::make_plan(source, layout.ranks, "own.json", model),
                    steps,
                    save.empty() ? own.path() : save);
}

}  // namespace tessera::test
