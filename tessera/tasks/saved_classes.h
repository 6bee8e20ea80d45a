// SPDX-License-Identifier: Apache-2.0
// Makes the task of a configuration; a task that continues a saved classifier keeps its classes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/model_source.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// Makes the task that `options` name. If `source` is a classifier of the same kind, its heads,
/// classes, their order and their number are written into options.params where these do not set
/// them, and `notes` receives how the data's classes differ. Reads the records of data.train unless
/// the parameters have the labels. Problems of the parameters are added to `problems`.
std::unique_ptr<Task> make_task_of(const std::optional<models::ModelSource>& source,
                                   const data::DataOptions& data,
                                   TaskOptions& options,
                                   config::Problems& problems,
                                   std::vector<std::string>& notes);

}  // namespace tessera::tasks
