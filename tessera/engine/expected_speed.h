// SPDX-License-Identifier: Apache-2.0
// An estimate of a training's speed before its first step.
#pragma once

namespace tessera::planner {
class PlanWithData;
}

namespace tessera::engine {

/// Returns the tokens/s of a training whose ranks all run on this host and reach half of its peak,
/// if the training is long enough to want to know; else 0. A token costs 6 FLOP for each parameter
/// (Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1). Cost: half a
/// second in a child process, because this process must not start threads before its ranks.
double expected_speed(const planner::PlanWithData& plan);

/// Returns the FLOPs of a training by the same rule: 6 x parameters x tokens.
double expected_flops(const planner::PlanWithData& plan);

}  // namespace tessera::engine
