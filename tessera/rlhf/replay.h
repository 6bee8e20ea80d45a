// SPDX-License-Identifier: Apache-2.0
// Repeats updates of a finished run: the rollouts in the ledger are learned again, without
// generating text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/planner/plan.h"

namespace tessera::rlhf {

/// A repeated step, and its values in metrics.jsonl.
struct ReplayedStep {
  engine::StepReport report;
  std::optional<double> loss, grad_norm;  ///< as recorded; nothing if the run has no such line
  /// Returns whether all bits are equal.
  [[nodiscard]] bool equal() const { return loss == report.loss && grad_norm == report.grad_norm; }
};

/// Returns the run's recorded configuration, without its number of threads where that was derived.
/// Throws Error{Format} if there is none.
json::Value config_of_run(const std::filesystem::path& run);

/// Returns the plan of the run in `run` for this number of ranks, with the run's number of threads.
/// Throws Error{Format} if there is no run, and Error{Config} for a run of another task.
planner::Plan plan_of_run(const std::filesystem::path& run, int ranks);

/// Returns the last step in the run's metrics.jsonl; nothing if there is none.
std::optional<std::int64_t> last_recorded_step(const std::filesystem::path& run);

/// Prepares an engine to repeat steps up to `step`: with the weights of the newest checkpoint
/// before `step`, or initial ones, and the rollouts in the run's ledger. Collective.
void begin_replay(engine::Engine& engine, const std::filesystem::path& run, std::int64_t step);

/// Trains from the newest checkpoint before `step`, or from the beginning, to `step` on the run's
/// ledger; writes nothing. `told` receives each step on every rank. Throws Error{Format} if the
/// ledger lacks a rollout. Collective.
void replay(const planner::PlanWithData& plan,
            comm::World& world,
            const std::shared_ptr<const data::Datasets>& data,
            const std::filesystem::path& run,
            std::int64_t step,
            const std::function<void(const ReplayedStep&)>& told);

}  // namespace tessera::rlhf
