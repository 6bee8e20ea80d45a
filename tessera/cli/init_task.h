// SPDX-License-Identifier: Apache-2.0
// Commented configurations that train a model on a task.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// The tasks that task_configuration() supports: all except pretrain.
std::vector<std::string> tasks_with_configuration();
/// The text of a configuration that trains the model `from` on `task`. If `data` is empty, it
/// contains an example name. Throws Error{Config} with the nearest name for an unknown task.
std::string task_configuration(const std::string& task,
                               const std::string& from,
                               const std::string& data);
/// The same for a new model with the sizes of a preset, whose tokenizer is learned first.
std::string task_configuration_of_preset(const std::string& task,
                                         const std::string& family,
                                         const std::string& preset,
                                         const std::string& data);

}  // namespace tessera::cli
