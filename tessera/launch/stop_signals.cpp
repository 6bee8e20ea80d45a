// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/stop_signals.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include <unistd.h>

#include "tessera/launch/early_stop.h"

namespace tessera::launch {
namespace {

// A terminal and a launcher may both deliver one Ctrl-C: a second signal within this time is the
// same request.
constexpr std::int64_t kSameRequestNs = 500'000'000;

std::atomic<ControlPage*> page{nullptr};
std::atomic<bool> second_ends{false};
std::atomic<std::int64_t> asked_at_ns{0};

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Uses only async-signal-safe functions: atomics, clock_gettime, the futex of ring_all, _exit.
void on_stop(int signal) {
  const int saved = errno;
  ControlPage* const control = page.load();
  std::int64_t never = 0;
  const std::int64_t now = now_ns();
  if (!asked_at_ns.compare_exchange_strong(never, now) && second_ends.load() &&
      now - asked_at_ns.load() > kSameRequestNs) {
    _exit(unsaved_exit_code(signal));
  }
  std::uint32_t none = 0;
  if (control->stop_requested.compare_exchange_strong(none, static_cast<std::uint32_t>(signal))) {
    control->ring_all();
  }
  errno = saved;
}

}  // namespace

void stop_on_signals(ControlPage& control, const sigset_t& signals, SecondSignal second) {
  page = &control;
  second_ends = second == SecondSignal::End;
  struct sigaction action {};
  action.sa_handler = &on_stop;
  action.sa_flags = SA_RESTART;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (sigismember(&signals, signal) == 1) sigaction(signal, &action, nullptr);
  }
}

}  // namespace tessera::launch
