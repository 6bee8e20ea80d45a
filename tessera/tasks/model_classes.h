// SPDX-License-Identifier: Apache-2.0
// The classes of a saved classifier, for a task that evaluates it or continues its training.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::tasks {

/// The names of the labels in the options of a classifier's objective; a label without a name has
/// its id as its name.
json::Value names_of_classes(const json::Value& objective_options);
/// The heads in the options of a classifier's objective, as task.params.heads: {"topic": [labels]}.
json::Value fields_of_heads(const json::Value& objective_options);

/// Names the classes of a saved classifier, or of each of its heads, in the parameters of the task
/// that trained it, in place of those that data.train has, and the weights of the classes in place
/// of the frequencies there. `saved`: options of its objective.
void keep_classes(const json::Value& saved, json::Value& params);

/// Adopts from a saved classifier what the parameters leave open before data is read: several heads
/// with their fields, and whether a record has several labels. `saved`: options of its objective.
void adopt_kind_of_classes(const json::Value& saved, json::Value& params);

/// Adopts the classes of a saved classifier, with their names, order and number, if every class of
/// the data is one of them. `found`: the objective's options that the task made of its data with
/// these parameters. Returns notes about classes that differ, whose rows in the head will have
/// another meaning.
std::vector<std::string> adopt_classes(const json::Value& saved,
                                       const json::Value& found,
                                       json::Value& params);

}  // namespace tessera::tasks
