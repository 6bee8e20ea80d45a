// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/peer_copies.h"

#include <utility>

#include "tessera/base/log.h"
#include "tessera/checkpoint/peer_copies.h"
#include "tessera/engine/trainer.h"

namespace tessera::engine {

PeerCopyHook::PeerCopyHook(const hosts::HostPart& part, std::int64_t every)
    : Hook(kReport), part_(part), every_(every) {}

/// The set with which the ranks began stays until they have completed one of their own.
void PeerCopyHook::before_train(Trainer& trainer) {
  trainer.engine().saver().set_last_copy(part_.copies.from);
}

void PeerCopyHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  Engine& engine = trainer.engine();
  if (engine.saver().copying() && engine.saver().settled()) finish(trainer);
  due_ = due_ || report.step % every_ == 0;
  // A stop, and the last step, end with a checkpoint.
  if (!due_ || engine.saver().saving() || report.stop_requested ||
      report.step == engine.max_steps())
    return;
  due_ = false;
  copy(trainer);
}

void PeerCopyHook::after_train(Trainer& trainer) {
  if (trainer.engine().saver().copying()) finish(trainer);
}

void PeerCopyHook::finish(Trainer& trainer) {
  Engine& engine = trainer.engine();
  engine.pause_clock();
  engine.saver().finish_copy();
  engine.resume_clock();
  if (const auto failure = engine.saver().take_copy_failure()) tell(trainer, *failure);
}

void PeerCopyHook::tell(Trainer& trainer, const Error& failure) {
  if (std::exchange(warned_, true) || !trainer.engine().world().is_leader()) return;
  log::warn("training goes on without copies in memory: " + failure.text());
}

void PeerCopyHook::copy(Trainer& trainer) {
  Engine& engine = trainer.engine();
  const hosts::CopyPart& copies = part_.copies;
  checkpoint::CopyTarget target{.places = {copies.places[static_cast<std::size_t>(copies.own)]},
                                .secret = part_.secret,
                                .set = {part_.generation, engine.step()},
                                .keep = engine.saver().last_copy()};
  if (copies.neighbour != copies.own)
    target.places.push_back(copies.places[static_cast<std::size_t>(copies.neighbour)]);
  engine.pause_clock();
  try {
    engine.saver().copy_in_background(std::move(target));
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Io) throw;
    tell(trainer, error);
  }
  engine.resume_clock();
}

}  // namespace tessera::engine
