// SPDX-License-Identifier: Apache-2.0
// The reference: a second model, whose weights do not change.
#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/rlhf/read_model.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// Returns true if the options name no reference and only an adapter is trained. The reference is
/// then the policy with its adapter switched off, and no second model is loaded.
bool is_base_of_policy(const planner::Plan& plan, const tasks::RlOptions& options);
/// Opens the model that options.reference names, or the policy's initial model, without an adapter,
/// which changes nothing initially. Its objective is the policy's. Memory: the weights in the
/// policy's working type, sharded over the ranks, unless rl.models.reference says otherwise. Throws
/// Error{Config} for a model with other tokens than the policy. Collective.
std::unique_ptr<ReadModel> open_reference(const planner::Plan& plan,
                                          const tasks::RlOptions& options,
                                          comm::World& world);

}  // namespace tessera::rlhf
