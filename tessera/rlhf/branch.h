// SPDX-License-Identifier: Apache-2.0
// Begins a new run at a step of another run of the task rl, with other options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/planner/plan.h"

namespace tessera::rlhf {

struct BranchPlans {
  planner::Plan run;  ///< of the existing run, whose updates are repeated; its checkpoints name the
                      ///< options of `branch`
  planner::Plan next;  ///< of the new run
};
/// Returns the plans of a run and of its branch in the folder `out`. `changes`: "KEY=VALUE"; keys
/// of the section rl may be written as such. Throws the errors of plan_of_run() and
/// planner::make_plan(), and Error{Config} for a change of model, adapter, tokenizer or optimizer
/// type, which the weights and moments of the run do not allow.
BranchPlans branch_plans(const std::filesystem::path& run,
                         const std::filesystem::path& out,
                         const std::vector<std::string>& changes,
                         int ranks);

/// Repeats the run's updates from its newest checkpoint of at most `step` updates to `step` on its
/// ledger, and writes a checkpoint of that step into `out`, with the lines of metrics.jsonl up to
/// it, the rollout within which it lies, and branch.json, which names the run, the step and the
/// changes. Throws Error{Format} if the ledger lacks a rollout. Collective.
void write_branch(const planner::PlanWithData& plan,
                  comm::World& world,
                  const std::shared_ptr<const data::Datasets>& data,
                  const std::filesystem::path& run,
                  std::int64_t step,
                  const std::filesystem::path& out,
                  const std::vector<std::string>& changes);

}  // namespace tessera::rlhf
