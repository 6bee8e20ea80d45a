// SPDX-License-Identifier: Apache-2.0
// How the evaluations of a training have gone: which was the best, and how long ago the last gain
// was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/json.h"
#include "tessera/engine/evaluate.h"
#include "tessera/planner/eval_options.h"

namespace tessera::engine {

/// The evaluation that is best by a planner::BestRule.
struct BestEvaluation {
  std::int64_t step = 0;
  double value = 0.0;  ///< of the rule's metric
};
json::Value to_json(const BestEvaluation& best, const planner::BestRule& rule);
/// Nothing where the value is of another rule, or cannot be read.
std::optional<BestEvaluation> best_from(const json::Value& value, const planner::BestRule& rule);

/// The value of the rule's metric. Error{Config} with the metrics that there are where it is not
/// among them.
double value_of(const EvalReport& report, const planner::BestRule& rule);

/// All evaluations of a training so far. Every rank has the same, and every checkpoint: a training
/// that is resumed stops where the undisturbed one does.
class Standing {
 public:
  /// Counts an evaluation. A value that is not finite is no gain. Source of the rule of gains:
  /// transformers' EarlyStoppingCallback.
  void add(std::int64_t step, double value, const planner::EvalOptions& options);
  [[nodiscard]] const std::optional<BestEvaluation>& best() const { return best_; }
  /// Why a training ends that has come so far; nothing: it goes on.
  [[nodiscard]] std::optional<std::string> why_stop(const planner::EvalOptions& options) const;

  [[nodiscard]] json::Value state(const planner::EvalOptions& options) const;
  /// What state() returned; a new standing where that was of another metric or cannot be read.
  static Standing from(const json::Value& state, const planner::EvalOptions& options);

 private:
  std::optional<BestEvaluation> best_;
  std::int64_t without_gain_ = 0;  ///< evaluations since the last gain
  std::int64_t gain_step_ = 0;     ///< of the last gain; 0 before the first
  std::int64_t last_step_ = 0;     ///< of the last evaluation
};

}  // namespace tessera::engine
