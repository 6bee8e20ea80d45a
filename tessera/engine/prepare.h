// SPDX-License-Identifier: Apache-2.0
// Prepares a training before its ranks start: folder, data, and the plan that is placed on the
// hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/console.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/resume.h"
#include "tessera/engine/run_folder.h"
#include "tessera/launch/early_stop.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

/// The ranks of the job that this process starts or is.
struct Local {
  bool is_leader = true;  ///< owns the run folder and prints
  bool launched = false;  ///< by a launcher: this process is one rank of the job
  int ranks = 1;          ///< of this host
  int first_rank = 0;
  int extra_ranks = 0;  ///< ranks of the job that do not train, behind those of the plan
  bool several_hosts = false;
};

/// The folder and data that are open while a training runs, also while its ranks start again.
struct Opened {
  Local local;
  /// Stop requests while this process itself works; null once the ranks handle them.
  std::unique_ptr<launch::EarlyStop> early;
  std::unique_ptr<const RunFolder> folder;
  std::shared_ptr<const data::Datasets> data;
  /// The state in the memory of hosts with which the ranks begin; null: there is none.
  std::shared_ptr<const checkpoint::Checkpoint> copies;
  std::uint64_t available = 0;  ///< bytes that all ranks of the plan may use
  /// ExperienceKind::run_divided() of the task, with its training data; empty if all ranks of the
  /// job train.
  std::function<int(
      const planner::PlanWithData&, comm::World& job, const ExperienceKind::Train& train)>
      run_divided = {};
};

struct TrainCommand {
  ResumeFrom resume;
  bool dry_run = false;
  bool quiet = false;          ///< no step lines
  Console* console = nullptr;  ///< null: print nothing
  HowToStart how;              ///< without `asked` and `stop_asked`
  /// Called on the leader when the resume point is known, before the ranks start; not when they
  /// start again. A program shows here what is going to be trained. May be empty.
  std::function<void(const planner::PlacedPlan&, const Opened&, const ResumePoint&)> on_ready = {};
};

struct Prepared {
  planner::PlacedPlan plan;
  Opened opened;
};

/// Takes the lock of the run folder, opens the data and tokenizes what is not in the cache, and
/// places the plan on the hosts. Makes no ATen call. Throws the errors of each step, and
/// launch::Stopped if a signal arrives meanwhile. Waits up to 20 s for the lock if earlier ranks of
/// the job were lost.
Prepared prepare(const planner::Plan& plan, const TrainCommand& command);

}  // namespace tessera::engine
