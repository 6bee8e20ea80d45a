// SPDX-License-Identifier: Apache-2.0
// The history of a training's evaluations: which was the best, and how long ago the last gain was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::tasks {

/// The best evaluation according to a BestRule.
struct BestEvaluation {
  std::int64_t step = 0;
  double value = 0.0;  ///< value of the rule's metric
};
json::Value to_json(const BestEvaluation& best, const BestRule& rule);
/// Returns nothing if the value belongs to another rule or cannot be parsed.
std::optional<BestEvaluation> best_from(const json::Value& value, const BestRule& rule);

/// All evaluations of a training so far. Every rank and every checkpoint has the same, so a resumed
/// training stops at the same step as an uninterrupted one.
class EvalHistory {
 public:
  /// Counts an evaluation. A non-finite value does not count as a gain. Source of the rule for
  /// gains: transformers' EarlyStoppingCallback.
  void add(std::int64_t step, double value, const EvalOptions& options);
  [[nodiscard]] const std::optional<BestEvaluation>& best() const { return best_; }
  /// The reason to end the training now; empty: it continues.
  [[nodiscard]] std::optional<std::string> why_stop(const EvalOptions& options) const;

  [[nodiscard]] json::Value state(const EvalOptions& options) const;
  /// Restores the result of state(); returns a new object if it belongs to another metric or cannot
  /// be parsed.
  static EvalHistory from(const json::Value& state, const EvalOptions& options);

 private:
  std::optional<BestEvaluation> best_;
  std::int64_t without_gain_ = 0;  ///< number of evaluations since the last gain
  std::int64_t gain_step_ = 0;     ///< step of the last gain; 0 before the first
  std::int64_t last_step_ = 0;     ///< step of the last evaluation
};

/// The reason for which a training ended before its last step, from the configuration and the
/// `extra` values of its checkpoint; nothing if it did not, or if they do not say.
std::optional<std::string> stopped_early(const json::Value& config, const json::Value& extra);

}  // namespace tessera::tasks
