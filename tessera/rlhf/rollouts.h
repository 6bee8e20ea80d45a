// SPDX-License-Identifier: Apache-2.0
// The experience of reinforcement learning: the current policy answers prompts, the answers are
// rewarded, and the policy learns from the rewards.
#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/train_state.h"

namespace tessera::planner {
class PlanWithData;
}

namespace tessera::rlhf {

class Generators;

/// Returns the experience of a plan of the task rl. The arguments must outlive it; `data` is the
/// training data, which the task has opened; `generators`: the ranks that only write rollouts,
/// nullptr if there are none. Throws Error{Config} for other data. Collective.
std::unique_ptr<engine::Experience> make_rollouts(const planner::PlanWithData& plan,
                                                  comm::World& world,
                                                  engine::TrainState& policy,
                                                  const data::Dataset& data,
                                                  Generators* generators);

}  // namespace tessera::rlhf
