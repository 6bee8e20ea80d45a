// SPDX-License-Identifier: Apache-2.0
// The reference: a model beside the policy, whose weights stay.
#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/engine/open_model.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::engine::rl {

/// The model that options.reference names, or the policy as it began: without an adapter, which
/// changes nothing at the beginning. Its objective is the policy's. Memory: the weights, in the
/// type that the policy works with, spread over the ranks. Error{Config} for a model that reads
/// other tokens than the policy. Collective.
std::unique_ptr<OpenModel> open_reference(const planner::Plan& plan,
                                          const tasks::RlOptions& options,
                                          comm::World& world);

}  // namespace tessera::engine::rl
