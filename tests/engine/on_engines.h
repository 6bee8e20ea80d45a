// SPDX-License-Identifier: Apache-2.0
// An engine on each of a few ranks that are threads.
#pragma once

#include <filesystem>
#include <functional>

#include "support/train_runs.h"

#include <ATen/Parallel.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {

/// `work` for an engine on each rank, its weights new or from `resume`.
inline void on_engines(const TinyRun& run,
                       const Layout& layout,
                       const std::function<void(engine::Engine&)>& work,
                       const std::filesystem::path& resume = {}) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    if (resume.empty()) {
      engine.initialize_weights();
    } else {
      engine.load(checkpoint::Checkpoint(resume));
    }
    engine.begin_experience();
    work(engine);
    engine.finish();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
  });
}

}  // namespace tessera::test
