// SPDX-License-Identifier: Apache-2.0
// Divides the ranks of a job between learning and rollouts (rl.overlap).
#pragma once

#include "tessera/config/json.h"

namespace tessera::cli {

/// Returns how many of a job's `ranks` the plan of a configuration is made for: all but those that
/// only write rollouts. With such ranks, sets run.threads_per_rank, unless it is given, so that all
/// ranks share the cores. `one_host`: whether the job runs on this host alone. Throws Error{Config}
/// if no rank is left to learn, and Error{Unsupported} for such ranks of several hosts.
int ranks_that_learn(json::Value& source, int ranks, bool one_host);

}  // namespace tessera::cli
