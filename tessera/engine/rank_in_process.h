// SPDX-License-Identifier: Apache-2.0
// The rank that the caller's own process is: alone, or as one of a launcher's job (torchrun,
// accelerate launch, srun, tessera launch).
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/hosts/fact.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/run_folder_check.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

/// The facts that the ranks of a job compare when they meet.
struct Agreement {
  std::uint64_t asked = 0;  ///< hash of the facts, besides the plan, that must be equal
  hosts::FactsOfHost facts = {};
  hosts::RunFolderCheck folder = {};
};

/// Joins the job when it is constructed and leaves it with end(). Nothing is forked, and the
/// allocator of the process stays as it is. Under a launcher the signals that ask a job to stop are
/// handled as in `tessera train`, and a thread watches the other ranks; a process can be a rank of
/// one job only. Used on one thread.
class RankInProcess {
 public:
  /// `report`: as launch::Options::report. Throws the errors of launch::join_launcher().
  RankInProcess(const planner::Plan& plan, const Agreement& agreement, launch::Report report);
  RankInProcess(const RankInProcess&) = delete;
  RankInProcess& operator=(const RankInProcess&) = delete;

  [[nodiscard]] comm::World& world() { return *world_; }
  /// Returns whether no launcher started this process.
  [[nodiscard]] bool alone() const { return control_ == nullptr; }
  /// Breaks the world: the other ranks throw this error, and end() returns its exit code.
  void fail(const Error& error);
  /// Says to the other ranks how this one ends, and returns the exit code of the process.
  int end(int code);

 private:
  launch::RankInfo info_;
  std::shared_ptr<const hosts::HostPart> part_;
  ControlPage* control_ = nullptr;
  std::unique_ptr<comm::World> world_;
  int failed_ = 0;  ///< exit code of the error of fail()
};

/// Returns the number of ranks of the job that this process belongs to, and which of them it is; 1
/// and 0 without a launcher.
int ranks_of_process();
int rank_of_process();

}  // namespace tessera::engine
