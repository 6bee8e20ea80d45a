// SPDX-License-Identifier: Apache-2.0
// Updates of a finished rollout once more: what the ledger has is learned again, without a word
// being drawn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine::rl {

/// A step that was made again, and what metrics.jsonl says of it.
struct ReplayedStep {
  StepReport report;
  std::optional<double> loss, grad_norm;  ///< as recorded; nothing: the run has no such line
  /// To the last bit.
  [[nodiscard]] bool equal() const { return loss == report.loss && grad_norm == report.grad_norm; }
};

/// The plan of the run in `run` for that many ranks, with the threads that it had. Error{Format}
/// where there is no run; Error{Config} for a run of another task.
planner::Plan plan_of_run(const std::filesystem::path& run, int ranks);

/// Trains from the newest checkpoint before `step`, or from the beginning, to `step` on what the
/// ledger of the run has; writes nothing. `told` receives each step on every rank. Error{Format}
/// where the ledger lacks a rollout. Collective.
void replay(const planner::Plan& plan,
            comm::World& world,
            const std::shared_ptr<const data::Datasets>& data,
            const std::filesystem::path& run,
            std::int64_t step,
            const std::function<void(const ReplayedStep&)>& told);

}  // namespace tessera::engine::rl
