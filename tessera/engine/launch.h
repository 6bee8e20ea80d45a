// SPDX-License-Identifier: Apache-2.0
// Runs a function on ranks: starts them as processes (launch/) and joins them into a World (comm/).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/hosts/fact.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/run_folder_check.h"
#include "tessera/launch/launch.h"

namespace tessera::planner {
class Plan;
class PlanWithData;
}  // namespace tessera::planner

namespace tessera::engine {

using launch::Report;
/// The messages of reports about a job that trains, saves and can resume.
launch::Messages training_messages();
/// A Report that logs its lines as errors.
void log_failure(const std::vector<std::string>& lines, int exit_code);

/// Defines how the ranks of this host are started, and which ranks of a job of several hosts they
/// are.
struct HowToStart {
  launch::LocalStart local;
  std::shared_ptr<const hosts::HostPart> part;  ///< null: all ranks run on this host
  bool* stop_asked = nullptr;                   ///< as launch::Options::stop_asked
  hosts::RunFolderCheck folder;                 ///< the hosts compare it when they meet
  std::uint64_t asked = 0;   ///< hash of the facts, besides the plan, on which ranks must agree
  hosts::FactsOfHost facts;  ///< the hosts compare them when they meet (engine/agreement.h)
  /// Ranks in addition to those of the plan, behind them; the mesh of the job is then that of
  /// data-parallel ranks.
  int further_ranks = 0;
};

/// Runs `fn` on every rank of the plan, and on how.further_ranks more, and returns the job's exit
/// code. Without launcher variables this process becomes the supervisor of plan.ranks() children;
/// under torchrun, srun or mpirun it is one of the ranks, with others on other hosts if the
/// launcher says so. All ranks must then have the same plan, except for threads; otherwise
/// Error{Config} is thrown. An Error that leaves `fn` stops the other ranks with its message, and
/// its code is the rank's exit code. The caller must not have run an ATen operation before; throws
/// Error{Config} if one has started worker threads (kernel_threads.h).
int run_ranks(const planner::Plan& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const launch::Messages& words = training_messages(),
              const HowToStart& how = {});
/// The same for a plan whose number of steps is known; the ranks must agree on it too.
int run_ranks(const planner::PlanWithData& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const launch::Messages& words = training_messages(),
              const HowToStart& how = {});

/// A hash of everything in the plan that its ranks must agree on.
std::uint64_t asked_of(const planner::Plan& plan);
std::uint64_t asked_of(const planner::PlanWithData& plan);

/// The same for ranks without a plan, on the given mesh. `threads` is for each rank's kernels; 0:
/// cores / local ranks. `link`: a value of run.transport; `device`: of run.device. A signal ends
/// the ranks at once (launch::Options::stops_at_once).
int run_ranks(const mesh::Mesh& mesh,
              int threads,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const std::string& link = "auto",
              const std::string& device = "cpu");

/// How a rank without others starts in the caller's process.
struct InProcess {
  int threads = 1;  ///< of libtorch's kernels
  /// Makes tessera's allocator that of all CPU tensors (memory/caching_allocator.h).
  bool caching_allocator = false;
};
/// Returns the world of one rank in this process. Nothing is forked and no signal is handled; of
/// libtorch's global state only what `how` names changes. Throws the errors of prepare_process().
std::unique_ptr<comm::World> world_in_process(const InProcess& how);

/// Throws the exception that is being handled again, as an Error if it is one of libtorch or of
/// missing memory. Call it in a handler.
[[noreturn]] void rethrow_as_error();

/// Sets libtorch's global state, once on each rank: allocator and number of threads. Throws
/// Error{Environment} if the process cannot start that number of threads.
void prepare_process(int threads);

}  // namespace tessera::engine
