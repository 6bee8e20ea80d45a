// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/saved_classes.h"

#include "tessera/base/error.h"
#include "tessera/tasks/model_classes.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

/// The classes that the task makes of its data; nothing if the data cannot be read, which the model
/// of the plan, made with the same options, reports.
json::Value classes_in(const Task& task, const data::DataOptions& data) {
  try {
    return task.objective_options(data);
  } catch (const Error&) {
    return json::Value::object();
  }
}

}  // namespace

std::unique_ptr<Task> make_task_of(const SavedObjective* saved,
                                   const data::DataOptions& data,
                                   TaskOptions& options,
                                   config::Problems& problems,
                                   std::vector<std::string>& notes) {
  const bool classifier = saved != nullptr && saved->options.find("num_labels") != nullptr;
  const bool classifies = tasks_of_classes().has(options.type);
  const bool readable = options.params.is_null() || options.params.is_object();
  if (!classifier || !classifies || !readable) return make_task(options, problems);
  TaskOptions draft = options;
  if (const AdoptClasses adopt = tasks_of_classes().get(options.type))
    adopt(saved->options, draft.params);
  config::Problems ignored;  // make_task() below reports those of the final parameters
  const auto first = make_task(draft, ignored);
  if (first == nullptr || !ignored.list().empty() || first->objective() != saved->name)
    return make_task(options, problems);
  for (std::string& note : adopt_classes(saved->options, classes_in(*first, data), draft.params))
    notes.push_back(std::move(note));
  options = std::move(draft);
  return make_task(options, problems);
}

}  // namespace tessera::tasks
