// SPDX-License-Identifier: Apache-2.0
// What a resume with other values does to the curve of the learning rate.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

struct CurveChange {
  std::vector<std::string> lines;  ///< for the first table: old -> new, and the two rates
  std::string warning;             ///< empty unless the rate rises again
};

/// Compares the rate of the next update in the saved run and in `plan`, whose max_steps is known.
/// Empty if both are the same, or if the saved configuration does not say how long its run was.
CurveChange curve_change(const checkpoint::Meta& meta, const planner::Plan& plan);

}  // namespace tessera::engine
