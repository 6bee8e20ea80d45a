// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/launch.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>

#include <fmt/core.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/launch/local_start.h"
#include "tessera/launch/machine.h"
#include "tessera/launch/shared_files.h"
#include "tessera/launch/stop_signals.h"
#include "tessera/launch/supervisor.h"

namespace tessera::launch {
namespace {

const Fd kNoFile;

/// Returns the number of ranks on all hosts.
int world_of(const Options& options) {
  return options.part ? options.part->world_size : options.ranks;
}

/// Returns the RankInfo of local rank `local_rank` of options.ranks.
RankInfo info_of(int local_rank, const Options& options, const SharedFiles& files) {
  RankInfo info;
  info.local_rank = local_rank;
  info.rank = local_rank + (options.part ? options.part->first_rank : 0);
  info.local_world_size = options.ranks;
  info.world_size = world_of(options);
  info.arenas = files.arenas();
  info.arena_bytes = files.arena_bytes();
  info.control = files.control_fd();
  return info;
}

/// Signals that are sent to every process of a job that is to end: by Slurm, or by kill(1) to the
/// process group.
sigset_t signals_of_ranks() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  return set;
}

// Does everything that a rank does differently from the process that forked it. Never returns.
[[noreturn]] void run_child(RankInfo info,
                            const Options& options,
                            const BlockedSignals& signals,
                            ControlPage& control,
                            pid_t supervisor,
                            const Fd& output,
                            const std::function<int(const RankInfo&)>& fn) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor)
    _exit(kExitTerminated);  // the supervisor ended before the line above
  redirect_output(output);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the whole process group; the supervisor decides
  std::signal(SIGHUP, SIG_IGN);
  stop_on_signals(control, signals_of_ranks(), SecondSignal::Ignore);
  signals.let_through();
  share_cores(info, options);
  pin(info.cores);
  const int code = run_rank(info, fn);
  std::cout.flush();
  std::fflush(nullptr);
  // Not exit(): destructors of static objects belong to the parent process.
  _exit(code);
}

}  // namespace

int launch(const Options& options, const std::function<int(const RankInfo&)>& fn) {
  TESSERA_REQUIRE(
      options.ranks >= 1 && options.ranks <= kMostRanks,
      Config,
      fmt::format("{} ranks were requested; 1 to {} are possible", options.ranks, kMostRanks),
      fmt::format("-n {}", std::clamp(options.ranks, 1, std::min(kMostRanks, usable_cores()))));
  check_cores(options.local, options.ranks);
  const int world = world_of(options);
  TESSERA_REQUIRE(world <= kMostRanks,
                  Unsupported,
                  fmt::format("{} ranks on all hosts; at most {} are possible", world, kMostRanks),
                  "use fewer slots");
  const std::vector<Fd> outputs =
      output_files(options.local, options.part ? options.part->first_rank : 0, options.ranks);
  const SharedFiles files(world, options.arena_bytes);
  const BlockedSignals signals;
  std::unique_ptr<JobConnection> others;
  if (options.connect) others = options.connect();
  Supervisor supervisor(options, signals, files.control());
  std::cout.flush();
  std::fflush(nullptr);  // otherwise every child would write the buffered output again
  const pid_t self = getpid();
  for (int rank = 0; rank < options.ranks; ++rank) {
    const RankInfo info = info_of(rank, options, files);
    const Fd& output = outputs.empty() ? kNoFile : outputs[static_cast<std::size_t>(rank)];
    const pid_t child = fork();
    if (child == 0) run_child(info, options, signals, files.control(), self, output, fn);
    TESSERA_REQUIRE(
        child > 0,
        Environment,
        fmt::format("cannot start rank {} of {}: fork: {}", info.rank, world, std::strerror(errno)),
        "raise the limit of processes (ulimit -u, or the container's) or use fewer ranks (-n)");
    supervisor.add(child);
  }
  // The supervisor of this host treats a signal that was sent to the job like one of its own.
  if (others) others->start(files.control(), [self](int signal) { kill(self, signal); });
  const int code = supervisor.watch();
  if (const auto failure = supervisor.failure(); failure && others && options.part->is_agent)
    others->report(*failure);
  return code;
}

}  // namespace tessera::launch
