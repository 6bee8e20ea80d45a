// SPDX-License-Identifier: Apache-2.0
// Advice on a stage of ZeRO that would do as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/planner/plan.h"

namespace tessera::planner {

/// Returns a note if a plan of stage 2 or 3 fits into 95 % of `available` bytes in a lower stage,
/// which communicates less.
std::optional<std::string> stage_advice(const Plan& plan, std::uint64_t available);

}  // namespace tessera::planner
