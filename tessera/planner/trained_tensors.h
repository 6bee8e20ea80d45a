// SPDX-License-Identifier: Apache-2.0
// optimizer.trained: the tensors that are trained, by their names in Hugging Face's files.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/parallel/param_groups.h"
#include "tessera/planner/named_model.h"

namespace tessera::planner {

/// Adds to `groups`, in front, one that freezes the parameters whose tensors match none of the
/// patterns; nothing without patterns.
/// Reports a pattern that is no regular expression or matches no tensor, and a parameter of which
/// only some tensors match.
void freeze_others(const std::vector<std::string>& patterns,
                   const NamedModel& model,
                   std::vector<parallel::ParamGroup>& groups,
                   std::vector<std::string>& notes,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::planner
