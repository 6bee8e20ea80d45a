// SPDX-License-Identifier: Apache-2.0
// Plans for more ranks than this program starts.
#pragma once

#include <string>

#include "tessera/config/json.h"
#include "tessera/planner/plan.h"

namespace tessera::predict {

/// The most ranks of a plan that is only predicted.
inline constexpr int kMostPlannedRanks = 1 << 17;

/// planner::make_plan() for up to kMostPlannedRanks ranks. With more ranks than can be started, the
/// plan is made for fewer data-parallel ranks with the same micro-batch and accumulation, and their
/// number is set afterwards. Throws its errors, and Error{Config} if the ranks do not divide.
planner::Plan plan_of_many(const json::Value& source, int ranks, const std::string& name_of_file);

/// The plan with another number of data-parallel ranks, which share the weights as before, and the
/// same micro-batch and accumulation.
planner::Plan with_data_ranks(const planner::Plan& plan, int data_ranks);

}  // namespace tessera::predict
