// SPDX-License-Identifier: Apache-2.0
// Local ranks: forks them, watches them, and tells in words how they ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/control_page.h"

namespace tessera::launch {

/// What a rank is told before anything else runs in it.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  /// One anonymous memory file (memfd) a local rank, shared by all of them: the arena whose pages
  /// rank i's transport hands out. Sparse; pages are reserved by their owner when it allocates.
  /// Empty for one rank.
  std::vector<int> arenas;
  std::size_t arena_bytes = 0;  ///< length of each arena: address space, not memory
  /// Shared page of the world: who lives, who failed, with what. -1: none (a single rank without a
  /// supervisor).
  int control = -1;
  int threads = 1;         ///< for this rank's kernels
  std::vector<int> cores;  ///< this rank's processors; empty: not pinned
};

/// Receives the report of a failure, first entry first ("rank 3 was lost: signal 9 ..."; one of an
/// error has its remedy on a second line), then a line for each other rank; and the job's exit
/// code.
using Report = std::function<void(const std::vector<std::string>& lines, int exit_code)>;

/// What reports say that depends on what the job does.
struct Words {
  std::string again = "start it again";  ///< remedy where a rank was lost
  std::string less_memory = "use fewer ranks (-n), or a higher memory limit";
  std::string stopping = "stopping; once more stops at once";  ///< when it was asked to stop
  std::string unsaved;  ///< what a stop at once loses; empty: nothing that is worth a word
};

struct Options {
  int ranks = 1;
  std::size_t arena_bytes = std::size_t{1} << 40;
  int threads_per_rank = 0;  ///< 0: cores / local ranks, at least 1
  /// Of everything that must be the same on all ranks. Those of a launcher tell each other when
  /// they meet: another number is another job, or another configuration.
  std::uint64_t asked = 0;
  Words words;
  /// Called in the supervisor; under a launcher on one rank: the first that is not lost, from
  /// another thread where the rank's own does not leave the broken world in time, or another one
  /// where that one does not react.
  Report report;
  /// Called in the supervisor when the job was asked to stop and goes on to the end of its step.
  std::function<void(const std::string&)> notice;
  double grace_s = 1.5;          ///< between abort of a broken world and SIGKILL of what is left
  double join_timeout_s = 60.0;  ///< for the ranks of a launcher to meet
};

/// Forks `options.ranks` children that run `fn` and end with its value as their exit code, and
/// returns the job's exit code in the supervisor: 0 if all ended with 0, otherwise the code of the
/// first rank that failed (70 if it is none of ours, 6 for one killed by a signal, 5 if the kernel
/// killed it for memory; 141, without a report, for one whose output nobody reads any more).
/// Nothing returns twice: the children never come back from here. The caller must not have started
/// a thread, OpenMP or an ATen operation. Errors: Error{Environment} if a descriptor or process
/// cannot be had; nothing is left behind.
///
/// SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless ignored, as nohup does): the first sets
/// `stop_requested` on the control page, so that the ranks stop after their step and say with their
/// value how that went; before any rank has begun a step, and when a second one comes, all ranks
/// are killed: 130 after SIGINT, otherwise 143. An Error that `fn` throws breaks the world with its
/// text, and its kind is the rank's exit code.
int launch(const Options& options, const std::function<int(const RankInfo&)>& fn);

/// What the environment says about a launcher that already started the ranks.
struct Launcher {
  std::string name;  ///< "torchrun", "srun", "mpirun"
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string job;  ///< identifies the job among those of this user on this host
};
/// Reads torchrun's, Slurm's or Open MPI's variables; nothing when there are none. Several hosts
/// are Error{Unsupported} "not built yet"; contradictions Error{Config} with both values, and so is
/// RANK with a WORLD_SIZE above 1 where neither torchrun's local ones nor another launcher's are
/// set.
std::optional<Launcher> detect_launcher();
/// Meets the other local ranks of a launcher's job over an abstract unix socket named by a hash of
/// uid and job (SO_PEERCRED checked), exchanges the memfds, and watches the peers by pidfd.
/// From then on the same signals set `stop_requested`; a second one ends this process.
/// Errors, on every rank that is there: Error{Comm} naming the ranks that did not come in time, or
/// one that ended while the others waited; Error{Config} for two processes with the same rank, and
/// for a rank that was asked something else than rank 0; Error{Environment}.
RankInfo join_launcher(const Launcher& launcher, const Options& options);

/// Runs `fn` as one rank and returns its exit code: keeps this rank's line of the control page,
/// breaks the world with the text of an error that `fn` throws. launch() does this in its children;
/// a rank of join_launcher() calls it itself.
int run_rank(const RankInfo& rank, const std::function<int(const RankInfo&)>& fn);

/// Maps the page behind RankInfo::control for the life of the process. Error{Bug} if it is not that
/// of `ranks` ranks.
ControlPage* map_control(int fd, int ranks);

/// Processors this process may use: affinity mask and cgroup quota (rounded down, at least 1).
int usable_cores();
/// Threads for each of `local_ranks`: usable_cores() / local_ranks, at least 1.
int threads_per_rank(int local_ranks);
/// Bytes that new ranks may use: the smaller of MemAvailable and what the cgroup's limit leaves.
std::uint64_t available_memory();

}  // namespace tessera::launch
