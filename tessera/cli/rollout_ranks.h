// SPDX-License-Identifier: Apache-2.0
// Divides the ranks of a job between learning and rollouts (rl.overlap).
#pragma once

#include "tessera/config/json.h"

namespace tessera::cli {

/// Returns how many of a job's `ranks` the plan of a configuration is made for: all but those that
/// only write rollouts. With such ranks, sets run.threads_per_rank, unless it is given, so that all
/// `local_ranks` of this host share the cores. Throws Error{Config} if no rank is left to learn,
/// and Error{Unsupported} for such ranks of a job that goes on without a lost host.
int ranks_that_learn(json::Value& source, int ranks, int local_ranks);

}  // namespace tessera::cli
