// SPDX-License-Identifier: Apache-2.0
// Commented configurations that fine-tune a model on a task.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// The tasks that task_configuration() knows: all but pretrain.
std::vector<std::string> tasks_with_configuration();
/// The text of a configuration that trains the model `from` on `task`. `data` empty: a name that
/// suits. Error{Config} with the nearest name for another task.
std::string task_configuration(const std::string& task,
                               const std::string& from,
                               const std::string& data);

}  // namespace tessera::cli
