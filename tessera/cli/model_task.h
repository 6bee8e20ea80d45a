// SPDX-License-Identifier: Apache-2.0
// The task of a model that does not belong to a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {

/// The options of the task whose models have such a head (tasks::ObjectiveTask::of_model), with the
/// classifier's thresholds; of pretrain if there is none.
tasks::TaskOptions task_options_of(const models::ObjectiveChoice& objective, bool labelled);
/// The names of a classifier's labels; empty: they have none.
std::vector<std::string> label_names(const models::ObjectiveChoice& objective);
/// Throws Error{Unsupported} if models with this head do not generate text; the fix names the
/// command that reads them. `path`: the model, for messages.
void require_generation(const models::ObjectiveChoice& objective, const std::string& path);
/// Replaces the thresholds of a classifier's run by those in the file next to its weights.
void use_thresholds(const models::ObjectiveChoice& objective, json::Value& task_params);

}  // namespace tessera::cli
