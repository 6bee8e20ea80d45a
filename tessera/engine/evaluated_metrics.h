// SPDX-License-Identifier: Apache-2.0
// The metrics that the evaluations of a training will report.
#pragma once

#include <string>
#include <vector>

#include "tessera/planner/train_config.h"

namespace tessera::engine {

/// True if the first term of the loss is the cross-entropy of tokens of the vocabulary, whose
/// exponential is the perplexity. A user's own model may have other terms.
bool predicts_tokens(const planner::Plan& plan);

/// Returns the names that eval.best may have, "loss" first. Empty if they are not known before the
/// first evaluation: of the task rl, of a program's own model, and of data with other tensors.
std::vector<std::string> evaluated_metrics(const planner::Plan& plan);

/// Throws Error{Config} if eval.best names a metric that the evaluations will not report, which
/// would end the training at the first one.
void check_best_metric(const planner::Plan& plan);

}  // namespace tessera::engine
