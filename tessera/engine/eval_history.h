// SPDX-License-Identifier: Apache-2.0
// The value that decides between the evaluations of a training (tasks/eval_history.h).
#pragma once

#include <string>
#include <vector>

#include "tessera/engine/evaluate.h"
#include "tessera/tasks/eval_history.h"

namespace tessera::engine {

using tasks::BestEvaluation;
using tasks::EvalHistory;

/// The value of the rule's metric. If the report lacks it, throws Error{Config} with the metrics
/// that exist.
double value_of(const EvalReport& report, const tasks::BestRule& rule);

/// Throws the same error for a metric that is not one of `names`.
[[noreturn]] void refuse_metric(const std::string& metric, const std::vector<std::string>& names);

}  // namespace tessera::engine
