// SPDX-License-Identifier: Apache-2.0
// Decides when checkpoints are written.
#include "tessera/checkpoint/checkpoint.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {
namespace {

std::filesystem::path root_of(const Trainer& trainer) {
  return trainer.run_dir() / checkpoint::kFolderOfRun;
}

void tell_unpruned(Trainer& trainer, const std::optional<Error>& failure) {
  if (!failure) return;
  trainer.note_incomplete(failure->what());
  log::warn("older checkpoints stay: " + failure->text());
}

}  // namespace

CheckpointHook::CheckpointHook(checkpoint::Options options) : Hook(kReport), options_(options) {}

void CheckpointHook::before_train(Trainer& trainer) {
  last_ = now_s();
  // If the weights came from another run, its best checkpoint is there and not in this folder.
  Engine& engine = trainer.engine();
  if (!engine.evaluator().best()) return;
  bool here = false;
  for (const auto& folder : checkpoint::list(root_of(trainer)))
    here = here || checkpoint::step_of(folder) == engine.evaluator().best()->step;
  // Hosts with local disks must agree.
  const checkpoint::Ranks ranks = engine.saver().ranks();
  if (ranks.nodes > 1) here = !ranks.any(!here);
  if (!here) engine.evaluator().set_best(std::nullopt);
  if (ranks.is_leader()) {
    const auto step = here ? std::optional(engine.evaluator().best()->step) : std::nullopt;
    trainer.try_to_write([&] { checkpoint::name_best(root_of(trainer), step); });
  }
}

/// Rank 0's clock decides for all ranks within the next step, since the clocks of ranks differ.
void CheckpointHook::before_train_iter(Trainer& trainer) {
  const auto interval = options_.interval_s();
  Engine& engine = trainer.engine();
  engine.saver().propose(interval && engine.world().is_leader() && now_s() - last_ >= *interval);
}

void CheckpointHook::after_test(Trainer& trainer, const EvalReport& report) {
  const auto& best = trainer.engine().evaluator().best();
  if (!options_.keeps_best()) return;
  const tasks::BestRule rule = trainer.engine().plan().run().eval.rule();
  const double value = value_of(report, rule);
  if (!std::isfinite(value) || (best && !rule.better(value, best->value))) return;
  found_ = {trainer.engine().step(), value};
}

bool CheckpointHook::is_best(Trainer& trainer) const {
  return found_ && found_->step == trainer.engine().step();
}

bool CheckpointHook::due(Trainer& trainer, const StepReport& report) const {
  if (report.stop_requested) return options_.save_on_signal;
  // The last checkpoint waits for the last evaluation, which decides whether it is the best.
  if (options_.keeps_best() && options_.final && report.step == trainer.engine().max_steps())
    return false;
  return is_best(trainer) || report.save_proposed ||
         options_.when()
             .in_run_of(trainer.engine().max_steps())
             .due(report.step, report.epoch_ended);
}

void CheckpointHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  Engine& engine = trainer.engine();
  waited_ += report.save_s;
  if (engine.saver().saving() && !engine.saver().copying() && engine.saver().settled())
    finish(trainer);
  const bool last = report.stop_requested || report.step == engine.max_steps();
  if (due(trainer, report)) save(trainer, last);
}

void CheckpointHook::after_train(Trainer& trainer) {
  finish(trainer);
  if (!trainer.last()) return;
  if (trainer.stop_signal() != 0 && !options_.save_on_signal) return;
  const bool saved = trainer.saved_step() == trainer.engine().step();
  if (is_best(trainer) || (options_.final && !saved)) save(trainer, /*wait=*/true);
}

/// Runs `work` outside of the step's clock. All ranks get the same Error{Io} of a failed save, so
/// training continues after it.
void CheckpointHook::attempt(Trainer& trainer, const std::function<void()>& work) {
  Engine& engine = trainer.engine();
  engine.pause_clock();
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Io) throw;
    engine.evaluator().set_best(before_);
    trainer.note_incomplete(error.what());
    if (engine.world().is_leader())
      log::warn("training goes on without this checkpoint: " + error.text());
  }
  engine.resume_clock();
}

/// Starts to write a checkpoint; with `wait` it is complete on return.
void CheckpointHook::save(Trainer& trainer, bool wait) {
  finish(trainer);
  Engine& engine = trainer.engine();
  last_ = now_s();
  step_ = engine.step();
  before_ = engine.evaluator().best();
  if (is_best(trainer)) engine.evaluator().set_best(std::exchange(found_, std::nullopt));
  const std::filesystem::path root = root_of(trainer);
  const auto prune =
      [root, keep = static_cast<int>(options_.keep), best = engine.evaluator().best()] {
        const auto step = best ? std::optional(best->step) : std::nullopt;
        checkpoint::name_best(root, step);
        checkpoint::prune(root, keep, step);
      };
  attempt(trainer, [&] {
    if (engine.plan().run().saves_in_background && !wait) {
      engine.saver().save_in_background(root, prune);
      waited_ = now_s() - last_;
      return;
    }
    const std::filesystem::path folder = engine.save(root);
    trainer.note_saved(step_);
    if (engine.saver().ranks().is_leader()) tell_unpruned(trainer, checkpoint::caught(prune));
    if (Console* console = trainer.console()) {
      console->line(
          fmt::format("checkpoint {} written in {:.1f} s", folder.string(), now_s() - last_));
    }
  });
}

/// Waits for the background save, if there is one.
void CheckpointHook::finish(Trainer& trainer) {
  Engine& engine = trainer.engine();
  if (!engine.saver().saving() || engine.saver().copying()) return;
  const double start = now_s();
  attempt(trainer, [&] {
    const checkpoint::BackgroundSave::Outcome outcome = engine.saver().finish();
    trainer.note_saved(step_);
    tell_unpruned(trainer, outcome.then);
    if (Console* console = trainer.console()) {
      console->line(
          fmt::format("checkpoint {} written in {:.1f} s, for {:.2f} of which training "
                      "waited",
                      outcome.folder.string(),
                      now_s() - last_,
                      waited_ + now_s() - start));
    }
  });
}

}  // namespace tessera::engine
