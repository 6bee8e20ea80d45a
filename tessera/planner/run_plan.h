// SPDX-License-Identifier: Apache-2.0
// The folder of a run, and its checkpoints, evaluations and printing: settings that may differ
// between two runs that compute the same.
#pragma once

#include <string>

#include "tessera/checkpoint/options.h"
#include "tessera/config/sections.h"
#include "tessera/parallel/elastic_batch.h"
#include "tessera/planner/run_options.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::planner {

struct RunPlan {
  std::string dir;     ///< the run folder
  RunOptions options;  ///< the section `run`
  checkpoint::Options checkpoint;
  /// Checkpoints are written in the background; false also if place() finds no memory for copies.
  bool saves_in_background = true;
  tasks::EvalOptions eval;
  parallel::ElasticityOptions elasticity;
  Printing printing;
  config::Sections sections;  ///< registered by their owners, such as monitors
};

}  // namespace tessera::planner
