// SPDX-License-Identifier: Apache-2.0
// Watches the children of one job until the last has ended, and reports how it ended.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/launch/hang_watch.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {

/// Blocks the signals that a supervisor waits for; the destructor discards pending ones and
/// restores the mask.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// Returns the next signal, or 0 after `seconds`.
  [[nodiscard]] int wait(double seconds) const;
  /// For a child: unblocks the signals, even if the process that started the job had blocked them.
  void let_through() const noexcept;

 private:
  sigset_t waited_{}, before_{};
  void (*child_before_)(int);
};

/// Supervises one job. States: running -> (stopping | broken) -> killing -> ended. Threads: one.
class Supervisor {
 public:
  Supervisor(const Options& options, const BlockedSignals& signals, ControlPage& control);
  /// Kills and reaps the children that still run, as far as the kernel ends them.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Adds the process of the next rank.
  void add(pid_t child);
  /// Waits until every child has ended. Returns the exit code of the job.
  int watch();
  /// After watch(): how the first rank of the job failed, if this supervisor reports that.
  [[nodiscard]] std::optional<Error> failure() const;

 private:
  struct Child {
    pid_t pid = 0;
    bool ended = false;
    bool killed = false;  // by this supervisor
    int status = 0;
  };

  void on_signal(int signal);
  void stop_at_once(int signal);
  void reap();
  void on_end(int local_rank);
  void break_world(int rank, const Loss& loss);
  void check_deadline();
  /// Tells of ranks that make no progress, and breaks the world of one that was stopped.
  void check_progress();
  void kill_rest() noexcept;
  [[nodiscard]] bool any_alive() const;
  [[nodiscard]] bool any_began() const;
  [[nodiscard]] int exit_code() const;
  void report(int code) const;
  [[nodiscard]] std::string first_entry() const;
  [[nodiscard]] std::string rank_line(int rank) const;
  /// Returns whether this supervisor reports a failure: always on one host; otherwise on the host
  /// of rank 0, and on every host if rank 0 or its host is the cause.
  [[nodiscard]] bool reports() const;
  /// Returns the child that is rank `rank` of the job; null: it runs on another host.
  [[nodiscard]] const Child* child_of(int rank) const;
  [[nodiscard]] int rank_of(std::size_t local_rank) const {
    return first_rank_ + static_cast<int>(local_rank);
  }

  const Options& options_;
  const BlockedSignals& signals_;
  ControlPage& control_;
  int first_rank_;  // of this host
  HangWatch hang_watch_;
  std::vector<Child> children_;
  std::uint64_t oom_kills_before_;
  std::optional<Loss> loss_;  // the loss that broke the world, if one did
  int failed_rank_ = -1;      // the rank that broke it
  double broken_at_ = -1.0;   // when the supervisor noticed; negative: the world is intact
  double stop_asked_at_ = -1.0;
  int stopped_at_once_ = 0;     // the signal that did so; 0: none
  bool output_closed_ = false;  // the reader of a rank's output has exited
  bool killing_ = false;
  double give_up_at_ = 0.0;  // when to stop waiting for killed children
};

}  // namespace tessera::launch
