// SPDX-License-Identifier: Apache-2.0
// Evaluates the model of a training on one rank, and records which evaluation was the best.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/eval_history.h"
#include "tessera/engine/eval_model.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/experience.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// Used only on the rank's own thread.
class Evaluator {
 public:
  /// The arguments must outlive it, and `experience` may be nullptr. `data`: the datasets of the
  /// training, which may be replaced by others with the same samples.
  Evaluator(const planner::Plan& plan,
            EvalModel& model,
            Experience* experience,
            const std::shared_ptr<const data::Datasets>& data)
      : plan_(plan), model_(model), experience_(experience), data_(data) {}

  /// Computes the mean loss over the first `eval.batches` batches of `eval.micro_batch` validation
  /// samples; the same bits for any layout. Error{Config} without validation data. Collective.
  EvalReport evaluate(const EvalRounds& rounds = {});
  /// The same over all of data.test. Throws Error{Config} if there is none.
  EvalReport evaluate_test();
  /// Returns the number of validation samples that evaluate() reads.
  [[nodiscard]] std::int64_t samples() const;

  /// Sets the best evaluation that checkpoints record; load() restores it. Call it on all ranks.
  void set_best(std::optional<BestEvaluation> best) { best_ = best; }
  [[nodiscard]] const std::optional<BestEvaluation>& best() const { return best_; }
  /// The state from which early stopping decides; checkpoints record it if the plan stops early.
  /// Change it identically on all ranks.
  [[nodiscard]] EvalHistory& eval_history() { return eval_history_; }
  /// Adds both to a checkpoint's metadata, and reads them from it.
  void describe(checkpoint::Meta& meta) const;
  void load(const checkpoint::Meta& meta);

 private:
  EvalReport evaluate_on(const data::Dataset& dataset,
                         std::int64_t samples,
                         const EvalRounds& rounds);
  /// Lets the model answer eval.generate samples and adds the scores of the answers.
  void add_answer_scores(EvalReport& report, const data::Dataset& dataset);

  const planner::Plan& plan_;
  EvalModel& model_;
  Experience* experience_;
  const std::shared_ptr<const data::Datasets>& data_;
  std::optional<BestEvaluation> best_;
  EvalHistory eval_history_;
};

}  // namespace tessera::engine
