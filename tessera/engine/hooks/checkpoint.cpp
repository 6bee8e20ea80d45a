// SPDX-License-Identifier: Apache-2.0
// When checkpoints are written.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/engine/hooks/hooks.h"

namespace tessera::engine {
namespace {

constexpr double kDefaultInterval = 15 * 60;  // seconds, when no number of steps is given

}  // namespace

CheckpointHook::CheckpointHook(planner::CheckpointOptions options)
    : Hook(kReport), options_(std::move(options)) {}

void CheckpointHook::before_train(Trainer& trainer) {
  last_save_ = now_s();
}

bool CheckpointHook::due(Trainer& trainer, const StepReport& report) const {
  if (report.stop_requested) return true;
  if (options_.every) return *options_.every > 0 && report.step % *options_.every == 0;
  // Rank 0's clock decides for all: clocks of ranks may differ by a step.
  comm::World& world = trainer.engine().world();
  const double mine = world.speaks() && now_s() - last_save_ >= kDefaultInterval ? 1.0 : 0.0;
  return world.all_reduce(
             world.everyone(), {mine}, comm::Op::Max, TESSERA_HERE("is a checkpoint due"))[0] > 0;
}

void CheckpointHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (due(trainer, report)) save(trainer);
}

void CheckpointHook::after_train(Trainer& trainer) {
  if (options_.final && trainer.last() && trainer.saved_step() != trainer.engine().step())
    save(trainer);
}

void CheckpointHook::save(Trainer& trainer) {
  Engine& engine = trainer.engine();
  engine.pause_clock();
  try {
    const std::filesystem::path root = trainer.run_dir() / "checkpoints";
    const double start = now_s();
    const std::filesystem::path folder = engine.save(root);
    trainer.note_saved();
    if (engine.world().speaks()) checkpoint::prune(root, static_cast<int>(options_.keep));
    if (Console* console = trainer.console()) {
      console->line(
          fmt::format("checkpoint {} written in {:.1f} s", folder.string(), now_s() - start));
    }
  } catch (const Error& error) {
    // Only what all ranks know alike may be survived: a failed save is.
    if (error.kind() != Error::Kind::Io) throw;
    trainer.note_incomplete(error.what());
    if (engine.world().speaks())
      log::warn("training goes on without this checkpoint: " + error.text());
  }
  last_save_ = now_s();
  engine.resume_clock();
}

}  // namespace tessera::engine
