// SPDX-License-Identifier: Apache-2.0
// The effect of a resume with other settings on the learning-rate curve.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

struct CurveChange {
  std::vector<std::string> lines;  ///< for the first table: old -> new value, and both rates
  std::string warning;             ///< empty unless the rate rises again and nobody asked for it
  std::optional<planner::Curve> curve;  ///< that the resumed run follows
};

/// Applies scheduler.on_resume and compares the rate of the next update in the saved run and in
/// `plan`. The result is empty if the curve stays the same, or if
/// the saved configuration does not determine the length of its run.
CurveChange curve_change(const checkpoint::Meta& meta, const planner::PlanWithData& plan);

/// The curve that a run follows, for the member `schedule` in the extra values of a checkpoint.
json::Value curve_of_run(const planner::PlanWithData& plan);

}  // namespace tessera::engine
