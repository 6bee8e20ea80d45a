// SPDX-License-Identifier: Apache-2.0
// Evaluates the test set with the best weights of the training.
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
  const std::optional<BestEvaluation> best = engine.best();
  if (!best) return fmt::format("the last weights (step {})", engine.step());
  if (best->step != engine.step()) {
    engine.load(checkpoint::Checkpoint(trainer.run_dir() / checkpoint::kFolderOfRun /
                                       checkpoint::step_name(best->step)));
  }
  return fmt::format("the best weights (step {})", best->step);
}

}  // namespace

void TestHook::after_train(Trainer& trainer) {
  // A stop must be quick.
  if (trainer.stop_signal() != 0 || !trainer.last()) return;
  Engine& engine = trainer.engine();
  engine.pause_clock();
  const std::string weights = take_best(trainer);
  const EvalReport report = engine.evaluate_test();
  if (engine.world().is_leader() && !trainer.run_dir().empty()) {
    trainer.try_to_write([&] {
      MetricsFile(trainer.run_dir() / "metrics.jsonl", trainer.last()->step)
          .write(engine.step(), report, EvalSplit::Test);
    });
  }
  if (Console* console = trainer.console()) {
    console->line(fmt::format("test with {} | loss {:.4f}{} | {} tokens",
                              weights,
                              text::unsigned_nan(report.loss),
                              metrics_text(report.metrics),
                              text::with_commas(report.tokens)));
  }
  trainer.tell_test_set(report);
  engine.resume_clock();
}

}  // namespace tessera::engine
