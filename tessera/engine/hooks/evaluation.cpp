// SPDX-License-Identifier: Apache-2.0
// Evaluates during a training; ends a training without gains.
#include "tessera/engine/hooks/hooks.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::engine {

void EvaluationHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (when_.due(report.step, report.epoch_ended)) run(trainer);
}

void EvaluationHook::after_train(Trainer& trainer) {
  // A stop must be quick: it saves a checkpoint and does not evaluate.
  if (trainer.stop_signal() == 0 && trainer.last() && evaluated_step_ != trainer.engine().step())
    run(trainer);
}

void EvaluationHook::run(Trainer& trainer) {
  evaluated_step_ = trainer.engine().step();
  trainer.test();
}

void PatienceHook::after_test(Trainer& trainer, const EvalReport& report) {
  Engine& engine = trainer.engine();
  const tasks::EvalOptions& options = planner::eval_options_of(engine.plan());
  engine.evaluator().eval_history().add(engine.step(), value_of(report, options.rule()), options);
  const auto reason = engine.evaluator().eval_history().why_stop(options);
  // After the last step there is nothing left to stop.
  if (!reason || engine.step() >= engine.max_steps()) return;
  trainer.stop_early(*reason);
  if (Console* console = trainer.console()) console->line(*reason);
}

}  // namespace tessera::engine
