// SPDX-License-Identifier: Apache-2.0
// Makes the task of a configuration; a task that continues a saved classifier keeps its classes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// The objective of a saved model: its name and its options.
struct SavedObjective {
  std::string name;
  json::Value options;
};

/// Makes the task that `options` name. If `saved` is that of a classifier of the same kind
/// (nullptr: there is no saved model), its heads, classes, their order and their number are written
/// into options.params where these do not set them, and `notes` receives how the data's classes
/// differ. Reads the records of data.train unless the parameters have the labels. Problems of the
/// parameters are added to `problems`.
std::unique_ptr<Task> make_task_of(const SavedObjective* saved,
                                   const data::DataOptions& data,
                                   TaskOptions& options,
                                   config::Problems& problems,
                                   std::vector<std::string>& notes);

}  // namespace tessera::tasks
