// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/evaluator.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/evaluated_metrics.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/shared_values.h"
#include "tessera/engine/written_texts.h"
#include "tessera/models/family.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/text_scores.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {

std::int64_t Evaluator::samples() const {
  return data_->validation == nullptr ? 0 : evaluated_samples(plan_, *data_->validation);
}

EvalReport Evaluator::evaluate(const EvalRounds& rounds) {
  TESSERA_REQUIRE(data_->validation != nullptr,
                  Config,
                  "there is no validation data to evaluate on",
                  "set data.validation or data.validation_fraction");
  return evaluate_on(*data_->validation, samples(), rounds);
}

EvalReport Evaluator::evaluate_test() {
  TESSERA_REQUIRE(data_->test != nullptr, Config, "there is no test data", "set data.test");
  return evaluate_on(*data_->test, data_->test->size(), {});
}

EvalReport Evaluator::evaluate_on(const data::Dataset& dataset,
                                  std::int64_t samples,
                                  const EvalRounds& rounds) {
  const comm::ActivityScope computes(model_.world(), Activity::None);
  return model_.with_weights([&] {
    if (experience_ != nullptr) return experience_->evaluate(dataset, samples);
    EvalRounds of_step = rounds;
    of_step.step = model_.steps();
    EvalReport report = engine::evaluate(model_.executor(),
                                         model_.world(),
                                         dataset,
                                         samples,
                                         planner::eval_options_of(plan_).micro_batch,
                                         of_step,
                                         planner::task_of(plan_).get());
    if (predicts_tokens(plan_)) {
      report.metrics.push_back({"perplexity",
                                std::exp(report.metrics.front().mean),
                                report.metrics.front().denominator});
    }
    add_answer_scores(report, dataset);
    return report;
  });
}

void Evaluator::add_answer_scores(EvalReport& report, const data::Dataset& dataset) {
  const tasks::EvalOptions& options = planner::eval_options_of(plan_);
  if (options.generate == 0) return;
  // The scores, and the number of texts.
  std::vector<double> values(tasks::kTextScores.size() + 1, 0.0);
  if (model_.generates()) {
    const comm::ActivityScope writes(model_.world(), Activity::Generate);
    Generator generator(model_.executor(), *planner::tokenizer_of(plan_), planner::model_of(plan_));
    GenerateOptions how;
    how.max_new_tokens = options.max_new_tokens;
    how.sampler.temperature = 0.0;
    const auto texts = write_texts(generator,
                                   dataset,
                                   *planner::tokenizer_of(plan_),
                                   options.generate,
                                   planner::model_of(plan_).trunk.output.target.has_value(),
                                   how,
                                   [&](std::int64_t) { model_.world().show_life(); });
    if (model_.world().is_leader()) {
      const auto scores = tasks::text_scores(texts);
      for (std::size_t i = 0; i < scores.size(); ++i)
        values[i] = scores[i].value;
      values.back() = static_cast<double>(texts.size());
    }
  }
  share_with_all(model_.world(), values, "scores of answers");
  TESSERA_REQUIRE(values.back() > 0,
                  Data,
                  fmt::format("eval.generate: the first {} samples of {} have no prompt to answer",
                              options.generate,
                              dataset.name()),
                  "raise eval.generate, or evaluate on other data");
  for (std::size_t i = 0; i < tasks::kTextScores.size(); ++i)
    report.metrics.push_back({std::string(tasks::kTextScores[i]), values[i], values.back()});
}

void Evaluator::describe(checkpoint::Meta& meta) const {
  const tasks::EvalOptions& eval = planner::eval_options_of(plan_);
  if (best_) meta.extra["best_evaluation"] = to_json(*best_, eval.rule());
  if (eval.stops_early()) meta.extra["evaluations"] = eval_history_.state(eval);
}

void Evaluator::load(const checkpoint::Meta& meta) {
  const tasks::EvalOptions& eval = planner::eval_options_of(plan_);
  const json::Value *best = meta.extra.find("best_evaluation"),
                    *evaluations = meta.extra.find("evaluations");
  if (best != nullptr) best_ = best_from(*best, eval.rule());
  if (evaluations != nullptr) eval_history_ = EvalHistory::from(*evaluations, eval);
}

}  // namespace tessera::engine
