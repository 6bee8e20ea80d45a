// SPDX-License-Identifier: Apache-2.0
// Evaluates the test set: during the training if the configuration asks for it, and at its end with
// the best weights.
#include <string>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/hooks/hooks.h"

namespace tessera::engine {
namespace {

/// Loads the best checkpoint if the training has continued after it. Returns which weights the
/// engine then has.
std::string take_best(Trainer& trainer) {
  Engine& engine = trainer.engine();
  const std::optional<BestEvaluation> best = engine.evaluator().best();
  if (!best) return fmt::format("the last weights (step {})", engine.step());
  if (best->step != engine.step()) {
    engine.load(checkpoint::Checkpoint(trainer.run_dir() / checkpoint::kFolderOfRun /
                                       checkpoint::step_name(best->step)));
  }
  return fmt::format("the best weights (step {})", best->step);
}

}  // namespace

void TestHook::run(Trainer& trainer, const std::string& weights) {
  Engine& engine = trainer.engine();
  // The best weights may be those that were evaluated last.
  const bool known = last_ && last_->first == engine.step();
  if (!known) last_.emplace(engine.step(), engine.evaluator().evaluate_test());
  const EvalReport& report = last_->second;
  if (Console* console = trainer.console()) {
    console->line(fmt::format("test with {} | loss {:.4f}{} | {}",
                              weights,
                              text::unsigned_nan(report.loss),
                              metrics_text(report.metrics),
                              counted_text(trainer, report, engine.data().test.get())));
  }
  if (!known) trainer.tell_test_set(report);
}

void TestHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (!when_.due(report.step, report.epoch_ended)) return;
  trainer.engine().pause_clock();
  run(trainer, fmt::format("the weights of step {}", report.step));
  trainer.engine().resume_clock();
}

void TestHook::after_train(Trainer& trainer) {
  // A stop must be quick.
  if (trainer.stop_signal() != 0 || !trainer.last()) return;
  trainer.engine().pause_clock();
  run(trainer, take_best(trainer));
  trainer.engine().resume_clock();
}

}  // namespace tessera::engine
