// SPDX-License-Identifier: Apache-2.0
// Joins launch/ to comm/: ranks that start as processes and go on as a World.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

using launch::Report;
/// What is said of a job that trains: it saves, and goes on from there.
launch::Messages training_words();
/// A report whose lines become errors of the log.
void log_failure(const std::vector<std::string>& lines, int exit_code);

/// Runs `fn` on every rank of the plan and returns the job's exit code. Without launcher variables
/// this process becomes the supervisor of plan.ranks children; under torchrun, srun or mpirun it is
/// one of the ranks, and all of them must have been given the same plan, but for their threads:
/// Error{Config} if not. An Error that leaves fn breaks the world with its message, so that the
/// other ranks stop with it; its code is the rank's exit code. The caller must not have run an ATen
/// operation.
int run_ranks(const planner::Plan& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const launch::Messages& words = training_words());

/// A hash of everything in the plan that its ranks must agree about.
std::uint64_t asked_of(const planner::Plan& plan);

/// The same for ranks without a plan, on that grid; `threads` of each rank's kernels, 0: cores /
/// local ranks.
int run_ranks(const mesh::Mesh& mesh,
              int threads,
              const Report& report,
              const std::function<int(comm::World&)>& fn);

/// What libtorch makes global, set once on each rank: allocator, thread count. Error{Environment}
/// if the process cannot have so many threads.
void prepare_process(int threads);

}  // namespace tessera::engine
