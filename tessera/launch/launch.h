// SPDX-License-Identifier: Apache-2.0
// Starts local ranks: forks them, watches them, and reports how they ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/launch/job_connection.h"

namespace tessera::launch {

/// Identity and resources of a rank, known before anything else runs in it.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  /// One anonymous memory file (memfd) per local rank, shared by all of them: the arena whose pages
  /// the transport of rank i hands out. Sparse; pages are reserved when their owner allocates them.
  /// Empty for a single rank.
  std::vector<int> arenas;
  std::size_t arena_bytes = 0;  ///< length of each arena in address space, not in memory
  /// Descriptor of the control page. -1: none (a single rank without a supervisor).
  int control = -1;
  int threads = 1;         ///< number of threads for the kernels of this rank
  std::vector<int> cores;  ///< processors of this rank; empty: not pinned
};

/// Receives the report of a failure and the exit code of the job. The first line is the failure
/// ("rank 3 was lost: signal 9 ..."; the fix of an error is on a second line of the same entry);
/// one line for each other rank follows. In an agent (LocalRanks::is_agent), the process that
/// started it shows the user the first line, unless that begins with kStoppedAtOnce.
using Report = std::function<void(const std::vector<std::string>& lines, int exit_code)>;

inline constexpr std::string_view kStoppedAtOnce = "stopped at once by ";

/// Parts of the reports that depend on what the job does.
struct Messages {
  std::string again = "start it again";  ///< fix for a lost rank
  std::string less_memory = "use fewer ranks (-n), or a higher memory limit";
  std::string stopping =
      "stopping; a second signal stops at once";  ///< printed when the job was asked to stop
  std::string unsaved;  ///< what an immediate stop loses; empty: nothing to mention
};

/// Defines how the processes of local ranks are started, apart from what they do.
struct LocalStart {
  /// Each rank gets an equal share of `core_list`, or of all processors of this process if it is
  /// empty, and as many threads unless their number is given.
  bool bind_cores = false;
  std::vector<int> core_list;
  /// Standard output and error of each rank go to a file of this folder, `<time>_rank<r>.log`;
  /// empty: to those of this process.
  std::string log_folder;
};

struct Options {
  int ranks = 1;
  std::size_t arena_bytes = std::size_t{1} << 40;
  int threads_per_rank = 0;  ///< 0: cores / local ranks, at least 1
  LocalStart local;
  /// The ranks of this host, `ranks` in number; null: the job has one host.
  std::shared_ptr<const LocalRanks> part;
  ConnectToJob connect;  ///< connects this host to the others; empty: the job has one host
  /// Hash of everything that must be equal on all ranks of a host. Ranks of a launcher compare it
  /// when they meet: a different hash means another job or another configuration.
  std::uint64_t asked = 0;
  Messages messages;
  /// Called in the supervisor. Under a launcher it is called on one rank: the first one that is not
  /// lost; from another thread if that rank does not leave the broken world in time, or on another
  /// rank if it does not react at all.
  Report report;
  /// Called in the supervisor when the job was asked to stop and continues to the end of its step.
  std::function<void(const std::string&)> notice;
  bool* stop_asked = nullptr;  ///< set to true when a signal asks the job to stop; may be null
  /// If true, the ranks have nothing to save, and a signal ends them and the job at once, also if a
  /// launcher started them.
  bool stops_at_once = false;
  double grace_s =
      1.5;  ///< time between the abort of a broken world and SIGKILL of the remaining ranks
  double join_timeout_s = 60.0;  ///< time for the ranks of a launcher to meet
};

/// Forks `options.ranks` children that run `fn` and exit with its value, and returns the exit code
/// of the job in the supervisor: 0 if all children returned 0, otherwise the code of the first rank
/// that failed (70 if the code is not one of tessera's, 6 if it was killed by a signal, 5 if the
/// kernel killed it for lack of memory; 141, without a report, if the reader of its output has
/// exited). The children never return from this call. The caller must not have started a thread,
/// OpenMP or an ATen operation. Throws Error{Environment} if a descriptor or process cannot be
/// created; nothing is left behind.
///
///
/// Signals: the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP (unless ignored, as under nohup) sets
/// `stop_requested` on the control page; the ranks then stop after their step, and the value of
/// `fn` says how that went. If no rank has begun a step, or when a second signal arrives, all ranks
/// are killed; the exit code is 130 after SIGINT, otherwise 143. An Error thrown by `fn` breaks the
/// world with its text, and its kind determines the exit code of the rank.
int launch(const Options& options, const std::function<int(const RankInfo&)>& fn);

/// The environment's description of a launcher that has already started the ranks
/// (hosts/detect_launcher.h).
struct Launcher {
  std::string name;  ///< "torchrun", "srun", "mpirun"
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string job;  ///< identifies the job among the jobs of this user on this host
  /// Launchers whose variables are set as well and have other values, as in torchrun under srun.
  std::vector<std::string> ignored;

  [[nodiscard]] bool several_hosts() const { return local_world_size < world_size; }
  /// Returns the rank of local rank 0: the ranks of a host are contiguous.
  [[nodiscard]] int first_rank() const { return rank - local_rank; }
};
/// Meets the other local ranks of a launcher's job over an abstract unix socket named by a hash of
/// uid and job (SO_PEERCRED is checked), exchanges the memfds, and watches the peers by pidfd. From
/// then on the stop signals set `stop_requested`; a second one ends this process. Throws, on every
/// rank that has arrived: Error{Comm} naming the ranks that did not arrive in time, or one that
/// ended while the others waited; Error{Config} if two processes have the same rank, or if a rank
/// has another configuration than rank 0; Error{Environment}. Local rank 0 connects this host to
/// the others (Options::connect) before it answers the ranks of this host.
RankInfo join_launcher(const Launcher& launcher, const Options& options);

/// Runs `fn` as one rank and returns its exit code. Maintains the line of this rank on the control
/// page, and breaks the world with the text of an error that `fn` throws. launch() calls this in
/// its children; a rank of join_launcher() calls it itself.
int run_rank(const RankInfo& rank, const std::function<int(const RankInfo&)>& fn);

/// Maps the page behind RankInfo::control for the life of the process. Throws Error{Bug} if it is
/// not a page of `ranks` ranks.
ControlPage* map_control(int fd, int ranks);

/// Returns the number of processors that this process may use: affinity mask and cgroup quota
/// (rounded down, at least 1).
int usable_cores();
/// Returns the number of threads for each of `local_ranks`: usable_cores() / local_ranks, at least
/// 1.
int threads_per_rank(int local_ranks);
/// Returns the bytes that new ranks may use: the smaller of MemAvailable and what the cgroup's
/// limit leaves.
std::uint64_t available_memory();

}  // namespace tessera::launch
