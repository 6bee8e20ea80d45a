// SPDX-License-Identifier: Apache-2.0
// Trains a plan as the program does: with the first table and its warnings.
#pragma once

#include "tessera/engine/prepare.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::cli {

/// Calls engine::prepare() and engine::run_training() with a table of the training and warnings
/// before the ranks start. The table is printed on command.console unless command.quiet is set.
/// Returns the exit code of the job; throws the errors of both.
int train_plan(const planner::Plan& plan, engine::TrainCommand command);

}  // namespace tessera::cli
