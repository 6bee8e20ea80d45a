// SPDX-License-Identifier: Apache-2.0
// The loss of a task as plain text, with the numbers of its configuration.
#pragma once

#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {

/// Returns the loss of the task: the formula of its objective, and for reinforcement
/// learning those of advantages, rewards and critic. Empty if the objective has none, or its
/// options are invalid.
std::vector<std::string> formula_of(const tasks::Task& task, const data::DataOptions& data);

}  // namespace tessera::engine
