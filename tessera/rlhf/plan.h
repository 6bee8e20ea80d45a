// SPDX-License-Identifier: Apache-2.0
// The rule of the task rl about plans (planner/place.h): unsupported settings, and the memory of
// all models.
#pragma once

#include <cstdint>

namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// Returns the memory of a rank that only writes rollouts (rl.overlap).
std::int64_t generator_bytes(const planner::Plan& plan);
/// Returns what of `available` bytes `count` of these ranks leave for the others of a host. Throws
/// Error{Memory} if they do not fit.
std::uint64_t memory_beside_generators(const planner::Plan& plan,
                                       std::uint64_t available,
                                       int count);
/// Returns whether training drops or perturbs something at random.
bool drops(const planner::Plan& plan);

}  // namespace tessera::rlhf
