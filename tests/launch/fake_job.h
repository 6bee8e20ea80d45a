// SPDX-License-Identifier: Apache-2.0
// Ranks that step without computing, and helpers that observe them from outside.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Memory that the test shares with all its descendants.
struct Board {
  std::array<std::atomic<int>, 8> pids{};
  std::array<std::atomic<int>, 8> steps{};
  std::array<std::atomic<int>, 8> numbers{};

  static Board& make() {
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Board;
  }
};

inline void nap(double seconds = 0.002) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Waits until the condition is true, at most `seconds`, which is generous for loaded machines.
inline bool eventually(const std::function<bool()>& condition, double seconds = 10.0) {
  for (const double end = now_s() + seconds; now_s() < end; nap()) {
    if (condition()) return true;
  }
  return condition();
}

/// Returns whether the process does not exist, or is a zombie that its new parent has not reaped.
inline bool is_gone(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return true;
  return line[line.rfind(')') + 2] == 'Z';
}

/// A rank that steps until the world breaks (then it throws the world's error) or a stop is
/// requested (returns 75 or 130).
inline int step_until_told(const RankInfo& info, Board& board) {
  const auto rank = static_cast<std::size_t>(info.rank);
  ControlPage& control = *map_control(info.control, info.world_size);
  board.pids[rank] = getpid();
  for (int step = 0;; ++step) {
    control.line(info.rank).step = step;
    board.steps[rank] = step;
    nap();
    if (control.aborted != 0) throw Error(Error::Kind::Comm, control.abort_message());
    if (const auto signal = control.stop_requested.load(); signal != 0) {
      return signal == SIGINT ? kExitInterrupted : kExitStopped;
    }
  }
}

/// Runs `body` in a child of the test, which exits with its value.
inline pid_t in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}
/// Returns the exit code, or 1000 + signal.
inline int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace tessera::launch
