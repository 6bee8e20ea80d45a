// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/peer_watch.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/process.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/hang_watch.h"
#include "tessera/launch/machine.h"
#include "tessera/launch/rank_end.h"
#include "tessera/launch/run_rank.h"
#include "tessera/launch/shared_files.h"

namespace tessera::launch {
namespace {

constexpr double kTickS = 0.1;

struct Peer {
  int rank;
  pid_t pid;
  Fd pidfd;  // invalid if the kernel has no pidfd_open
};

class PeerWatch {
 public:
  PeerWatch(ControlPage& control, int rank, const Options& options)
      : control_(control),
        rank_(rank),
        grace_s_(options.grace_s),
        messages_(options.messages),
        host_(options.part ? options.part->name : ""),
        notice_(options.notice),
        oom_kills_before_(oom_kills()) {
    // The ranks of this host; the coordinator of the job watches the others (coordinator.h).
    const int first = options.part ? options.part->first_rank : 0;
    const int local = options.part ? options.part->local_ranks : static_cast<int>(control.ranks);
    if (rank == first) hang_watch_.emplace(control, first);
    local_ranks_ = local;
    for (int other = first; other < first + local; ++other) {
      if (other == rank) continue;
      const auto pid = static_cast<pid_t>(control.line(other).pid.load());
      peers_.push_back({other, pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))});
    }
  }

  [[noreturn]] void run() {
    double broken_at = -1.0;
    for (;;) {
      wait_for_a_death();
      check_peers();
      obey_signal();
      check_progress();
      if (control_.aborted.load(std::memory_order_acquire) == 0) continue;
      if (broken_at < 0.0) broken_at = now_s();
      if (now_s() > broken_at + grace_s_) end();
    }
  }

 private:
  /// Breaks the world of ranks that have nothing to save when a signal asks them to stop.
  void obey_signal() {
    const int signal = signal_that_ends(control_);
    if (signal == 0 || control_.aborted.load(std::memory_order_acquire) != 0) return;
    control_.abort(rank_,
                   static_cast<std::uint32_t>(Error::Kind::Comm),
                   "it was stopped by " + signal_text(signal));
  }

  /// The first rank of the host reports ranks that make no progress, and breaks the world of one
  /// whose process is stopped.
  void check_progress() {
    if (!hang_watch_ || control_.aborted.load(std::memory_order_acquire) != 0) return;
    std::vector<pid_t> processes;
    for (int local = 0; local < local_ranks_; ++local) {
      const RankLine& line = control_.line(rank_ + local);
      const bool runs = line.state.load() <= static_cast<std::uint32_t>(RankState::Running);
      processes.push_back(runs ? static_cast<pid_t>(line.pid.load()) : 0);
    }
    const std::optional<HangingRank> found = hang_watch_->look(processes);
    if (!found) return;
    if (found->stopped) {
      control_.abort(found->rank,
                     static_cast<std::uint32_t>(Error::Kind::Comm),
                     found->text + "; " + messages_.again);
    } else if (notice_) {
      notice_(found->text);
    }
  }

  /// Ends a rank that does not leave by itself because it computes for long or hangs.
  [[noreturn]] void end() {
    try {
      report_failure(control_, rank_);
    } catch (const std::exception& error) {
      log::error(error.what());
    }
    const int signal = signal_that_ends(control_);
    _exit(signal != 0 ? unsaved_exit_code(signal) : exit_code(abort_kind(control_)));
  }

  void wait_for_a_death() const {
    std::vector<pollfd> waited;
    for (const Peer& peer : peers_) {
      if (peer.pidfd.get() >= 0) waited.push_back({peer.pidfd.get(), POLLIN, 0});
    }
    poll(waited.data(), waited.size(), static_cast<int>(kTickS * 1e3));
  }

  void check_peers() {
    const auto gone =
        std::partition(peers_.begin(), peers_.end(), [](const Peer& p) { return !ended(p); });
    for (auto peer = gone; peer != peers_.end(); ++peer)
      on_end(peer->rank);
    peers_.erase(gone, peers_.end());
  }

  static bool ended(const Peer& peer) {
    if (peer.pidfd.get() < 0) return !is_running(peer.pid);
    pollfd waited{peer.pidfd.get(), POLLIN, 0};
    return poll(&waited, 1, 0) > 0;
  }

  void on_end(int rank) {
    RankLine& line = control_.line(rank);
    const auto state = static_cast<RankState>(line.state.load());
    if (state == RankState::Finished || state == RankState::Failed) return;
    line.state = static_cast<std::uint32_t>(RankState::Lost);
    const bool of_memory = oom_kills() > oom_kills_before_;
    const Loss loss =
        with_host(describe_silent_loss(rank, line.step.load(), of_memory, messages_), host_);
    control_.abort(rank, static_cast<std::uint32_t>(loss.kind), loss.text + "; " + loss.remedy);
  }

  ControlPage& control_;
  int rank_;
  double grace_s_;
  Messages messages_;
  std::string host_;  // empty: the job has one host
  std::function<void(const std::string&)> notice_;
  std::optional<HangWatch> hang_watch_;  // on the first rank of the host
  int local_ranks_ = 1;
  std::uint64_t oom_kills_before_;
  std::vector<Peer> peers_;
};

}  // namespace

void watch_peers(ControlPage& control, int rank, const Options& options) {
  try {
    quiet_thread([watch = PeerWatch(control, rank, options)]() mutable { watch.run(); }).detach();
  } catch (const std::system_error& error) {
    throw Error(Error::Kind::Environment,
                fmt::format("cannot start the thread of local rank {} that watches the others: {}",
                            rank,
                            error.what()),
                "raise the limit on processes (ulimit -u)");
  }
}

}  // namespace tessera::launch
