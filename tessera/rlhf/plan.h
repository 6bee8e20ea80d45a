// SPDX-License-Identifier: Apache-2.0
// Additions of the task rl to a plan: unsupported settings, and the memory of all models.
#pragma once

#include <cstdint>

#include "tessera/planner/train_config.h"

namespace tessera::engine::rl {

/// Completes a plan of the task rl before the ranks start: refuses settings that are not built and
/// missing models (Error{Config}, Error{Unsupported}, Error{Format}); sets Plan::beside to the
/// needs of reference, reward models, critic, rollout and cache, and adds a note about it. Models
/// may be on some ranks alone: Plan::beside is the mean of the ranks of a host, the largest of any.
/// `ranks_of_host`: their number; 0: all ranks are on one host. Does nothing for other plans.
void settle_plan(planner::Plan& plan, int ranks_of_host = 0);
/// Returns the memory of a rank that only writes rollouts (rl.overlap).
std::int64_t generator_bytes(const planner::Plan& plan);
/// Returns what of `available` bytes `count` of these ranks leave for the others of a host. Throws
/// Error{Memory} if they do not fit.
std::uint64_t memory_beside_generators(const planner::Plan& plan,
                                       std::uint64_t available,
                                       int count);
/// Returns whether training drops or perturbs something at random.
bool drops(const planner::Plan& plan);

}  // namespace tessera::engine::rl
