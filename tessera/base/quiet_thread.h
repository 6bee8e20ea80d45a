// SPDX-License-Identifier: Apache-2.0
// Threads that no signal interrupts.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace tessera {

/// While it lives, the thread that made it takes no signals, nor does one that it makes meanwhile.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

/// Runs fn in a thread without signals: those of the process are for the thread that calls this.
/// std::system_error where no thread can be had.
template <class Fn>
std::thread quiet_thread(Fn fn) {
  const NoSignals quiet;
  return std::thread(std::move(fn));
}

}  // namespace tessera
