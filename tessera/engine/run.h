// SPDX-License-Identifier: Apache-2.0
// Runs one training from its placed plan to its exit code: resume point, ranks, status.
#pragma once

#include "tessera/engine/prepare.h"

namespace tessera::planner {
class PlacedPlan;
class Plan;
}  // namespace tessera::planner

namespace tessera::engine {

/// `opened`: of prepare(), which made the plan. Errors that are detected before a rank starts are
/// thrown, as is launch::Stopped if a signal arrives before then; later errors are reported on the
/// console, and their code is returned. If this process starts all ranks of the job and some are
/// lost or hang, the ranks start again run.restarts times from the newest checkpoint.
int run_training(const planner::PlacedPlan& plan, Opened& opened, const TrainCommand& command);

/// Logs all notes of a plan.
void log_notes(const planner::Plan& plan);

}  // namespace tessera::engine
