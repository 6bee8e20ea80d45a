// SPDX-License-Identifier: Apache-2.0
// Which layouts the plan refuses for a model whatever its sizes are, and why.
#pragma once

#include <string>
#include <vector>

#include "tessera/models/family.h"

namespace tessera::planner {

struct LayoutLimit {
  std::string layout;  ///< the keys: "parallel.sequence"
  std::string reason;
};
/// What of tensor parallelism in each mode, parallel.sequence, and parallel.context in both modes
/// is refused for the model. Makes its blocks once.
std::vector<LayoutLimit> layout_limits(const models::Resolved& model,
                                       const models::ModelOptions& options);

/// docs/layouts.md: the limits of every family, as its first preset is, under every objective that
/// it has.
std::string layouts_markdown();

}  // namespace tessera::planner
