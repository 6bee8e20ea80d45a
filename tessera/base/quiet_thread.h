// SPDX-License-Identifier: Apache-2.0
// Threads that receive no signals.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace tessera {

/// Blocks all signals for the current thread, and for threads that it creates, while the object
/// lives.
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

/// Runs `fn` in a thread that receives no signals, so that the signals of the process are delivered
/// to the calling thread. Throws std::system_error if the thread cannot be created.
template <class Fn>
std::thread quiet_thread(Fn fn) {
  const NoSignals quiet;
  return std::thread(std::move(fn));
}

}  // namespace tessera
