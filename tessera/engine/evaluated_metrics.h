// SPDX-License-Identifier: Apache-2.0
// The data that the evaluations of a training will read and the metrics that they will report,
// known before the first one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// True if the first term of the loss is the cross-entropy of tokens of the vocabulary, whose
/// exponential is the perplexity. A user's own model may have other terms.
bool predicts_tokens(const planner::Plan& plan);

/// Returns the names that eval.best may have, "loss" first. Empty if they are not known before the
/// first evaluation: of the task rl, of a program's own model, and of data with other tensors.
std::vector<std::string> evaluated_metrics(const planner::Plan& plan);

/// Returns the number of validation samples that an evaluation reads.
std::int64_t evaluated_samples(const planner::Plan& plan, const data::Dataset& validation);

/// Throws Error{Config} if eval.best names a metric that the evaluations will not report, which
/// would end the training at the first one.
void check_best_metric(const planner::Plan& plan);

/// check_best_metric(), and throws Error{Data} if the validation or test data has nothing to
/// evaluate: no token to predict, or with eval.generate no prompt. Cost: it reads samples up to the
/// first one that has.
void check_evaluations(const planner::Plan& plan, const data::Datasets& data);

}  // namespace tessera::engine
