// SPDX-License-Identifier: Apache-2.0
// Watches the children of one job until the last has ended, and says how it went.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tessera/base/control_page.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {

/// Blocks the signals that a supervisor waits for; the destructor drops those still pending and
/// restores the mask.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// The next signal, or 0 after `seconds`.
  [[nodiscard]] int wait(double seconds) const;
  /// For a child: they reach it, whatever whoever started the job had blocked.
  void let_through() const noexcept;

 private:
  sigset_t waited_{}, before_{};
  void (*child_before_)(int);
};

/// States of a job: running -> (stopping | broken) -> killing -> ended. Threads: one.
class Supervisor {
 public:
  Supervisor(const Options& options, const BlockedSignals& signals, ControlPage& control);
  /// Kills and reaps what still runs, as far as the kernel ends it.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Of the next rank.
  void add(pid_t child);
  /// Until every child has ended. Returns the job's exit code.
  int watch();

 private:
  struct Child {
    pid_t pid = 0;
    bool ended = false;
    bool killed = false;  // by us
    int status = 0;
  };

  void on_signal(int signal);
  void stop_at_once(int signal);
  void reap();
  void on_end(int rank);
  void break_world(int rank, const Loss& loss);
  void check_deadline();
  void kill_rest() noexcept;
  [[nodiscard]] bool any_alive() const;
  [[nodiscard]] bool any_began() const;
  [[nodiscard]] int exit_code() const;
  void report(int code) const;
  [[nodiscard]] std::string first_entry() const;
  [[nodiscard]] std::string rank_line(int rank) const;

  const Options& options_;
  const BlockedSignals& signals_;
  ControlPage& control_;
  std::vector<Child> children_;
  std::uint64_t oom_kills_before_;
  std::optional<Loss> loss_;  // what broke the world, if it was a death
  int failed_rank_ = -1;      // who broke it
  double broken_at_ = -1.0;   // when we learned of it; negative: whole
  double stop_asked_at_ = -1.0;
  int stopped_at_once_ = 0;  // by this signal
  bool unheard_ = false;     // a rank's reader has left
  bool killing_ = false;
  double give_up_at_ = 0.0;  // waiting for the killed
};

}  // namespace tessera::launch
