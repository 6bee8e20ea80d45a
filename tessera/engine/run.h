// SPDX-License-Identifier: Apache-2.0
// Runs one training from a plan to its exit code: data, folder, resume point, first table, ranks,
// status.
#pragma once

#include <functional>

#include "tessera/engine/console.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/resume.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

struct TrainCommand {
  ResumeFrom resume;
  bool dry_run = false;
  bool quiet = false;          ///< no table and no step lines
  Console* console = nullptr;  ///< null: print nothing
  HowToStart how;              ///< without `asked` and `stop_asked`
};

/// Errors that are detected before a rank starts are thrown, as is launch::Stopped if a signal
/// arrives before then; later errors are reported on the console, and their code is returned. If
/// this process starts all ranks of the job and some are lost or hang, the ranks start again
/// run.restarts times from the newest checkpoint.
int run_training(planner::Plan plan, const TrainCommand& command);

}  // namespace tessera::engine
