// SPDX-License-Identifier: Apache-2.0
// The section `eval`: when a training is evaluated, which evaluation is the best, and when it stops
// for lack of gains.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/config/cadence.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/token_dataset.h"

namespace tessera::tasks {

class Task;

/// Decides which of two evaluations is better.
struct BestRule {
  std::string metric = "loss";
  bool higher = false;  ///< higher values are better
  [[nodiscard]] bool better(double value, double than) const {
    return higher ? value > than : value < than;
  }
};
/// True if higher values of a metric are better by default: for all except losses, perplexities,
/// errors and distances.
bool higher_is_better(std::string_view metric);

/// The weights that are evaluated: the trained ones, or their moving average (trainer.ema).
enum class EvalWeights : std::uint8_t { Trained, Ema };

struct EvalOptions {
  json::Value every = json::Value::integer(0);       ///< steps or "epoch": when()
  json::Value test_every = json::Value::integer(0);  ///< the same of data.test: test_when()
  std::optional<std::int64_t> batches;
  std::int64_t micro_batch = 8;
  json::Value best;  ///< a metric, or {"metric", "mode"}: rule()
  std::optional<std::int64_t> patience, patience_steps;
  double min_gain = 0.0;
  /// Number of validation samples that the model answers at each evaluation, and of test samples.
  std::int64_t generate = 0;
  EvalWeights weights = EvalWeights::Trained;
  std::string prompt;
  std::int64_t max_new_tokens = 50, top_k = 1;
  double temperature = 1.0;

  [[nodiscard]] config::Cadence when() const { return config::cadence_of(every); }
  [[nodiscard]] config::Cadence test_when() const { return config::cadence_of(test_every); }
  /// Requires values that check_eval() has accepted.
  [[nodiscard]] BestRule rule() const;
  /// True if a training may end before its last step.
  [[nodiscard]] bool stops_early() const { return patience || patience_steps; }
  void describe(config::Fields& fields);
};

/// Defines how sample texts are drawn where the configuration does not: at temperature 0.8 from the
/// 40 likeliest tokens, because the likeliest words of a young model repeat themselves. `vocab` 0:
/// unknown.
void settle_sampling(EvalOptions& options, std::int64_t vocab, const config::Origins& origins);

/// Reports invalid keys of `options` and conflicts between them.
void check_eval(const EvalOptions& options,
                config::Problems& problems,
                const config::Origins& origins);
/// Reports eval.generate with data whose samples have no answer of their own, and eval.best that
/// names a score of answers which are not written.
void check_answers(const EvalOptions& options,
                   const Task& task,
                   const data::DataOptions& data,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::tasks
