// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/early_stop.h"

#include <ctime>

#include <fmt/core.h>

#include "tessera/base/error.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);  // Slurm's warning that the time limit is near
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

int unsaved_exit_code(int signal) noexcept {
  return signal == SIGINT ? kExitInterrupted : kExitTerminated;
}

Stopped::Stopped(int signal)
    : signal_(signal),
      text_(fmt::format("stopped by {}: no step had begun, there was nothing to save",
                        signal_text(signal))) {}

int Stopped::exit_code() const noexcept {
  return unsaved_exit_code(signal_);
}

EarlyStop::EarlyStop() : waited_(stop_signals()) {
  pthread_sigmask(SIG_BLOCK, &waited_, &before_);
}

EarlyStop::~EarlyStop() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void EarlyStop::check() const {
  const timespec at_once{};
  const int first = sigtimedwait(&waited_, nullptr, &at_once);
  if (first <= 0) return;
  // timeout(1) sends its signal twice; the second one must not end the process before cleanup is
  // done.
  while (sigtimedwait(&waited_, nullptr, &at_once) > 0) {
  }
  throw Stopped(first);
}

}  // namespace tessera::launch
