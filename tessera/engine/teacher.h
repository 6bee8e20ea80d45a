// SPDX-License-Identifier: Apache-2.0
// The teacher of a distillation: a second model, whose weights do not change.
#pragma once

#include "tessera/nn/block.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// The plan's model for this rank; if the plan distills, its objective also learns the predictions
/// of the teacher, which the rank loads whole, in the plan's working type, when a rank that holds
/// the objective needs it first. The blocks have the same parameters as the plan's. Throws, in the
/// first training step, Error{Config} for a teacher with another tokenizer, and the errors of
/// find_model().
nn::Model with_teacher(const planner::Plan& plan);

}  // namespace tessera::engine
