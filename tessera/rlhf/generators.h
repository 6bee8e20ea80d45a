// SPDX-License-Identifier: Apache-2.0
// Ranks that only write rollouts while the others learn (rl.overlap): how a job is divided, what
// the two sides send each other, and the loop of the ranks that write.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/train_state.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/rollout_writer.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// The parts of a job, as worlds of their own. The first ranks learn, the last ones write.
struct JobParts {
  std::unique_ptr<comm::World> learners;    ///< nullptr on other ranks
  std::unique_ptr<comm::World> generators;  ///< nullptr on other ranks
  /// The last rank that learns, which has rank 0 in it, and all that write; nullptr on other ranks.
  std::unique_ptr<comm::World> link;
};
/// Divides a job of plan.ranks() + plan.data().task->extra_ranks() ranks, of which there is at
/// least one of each kind. Not collective.
JobParts divide_job(const planner::Plan& plan, comm::World& job);

/// The ranks that write, as those that learn see them. At most one rollout is under way. All
/// methods are collective over the ranks that learn; used only on the rank's own thread.
class Generators final : public engine::ExtraRanks {
 public:
  /// `link`: that of divide_job(), which must outlive this; `options`, `rollout`: the task's
  /// options, and the number of completions of a rollout.
  Generators(comm::World* link, const tasks::RlOptions& options, std::int64_t rollout);

  /// Lets them write the rollout at `place` with the current weights of the policy, which are sent
  /// unless they have them: all at first, later those that are trained. `roll_backs`: see
  /// RolloutWriter. Memory: in ZeRO stage 3, one block's weights; if ranks share layers, one
  /// parameter's. Cost: a copy of the weights by each rank that writes, which must be idle.
  void order(const Place& place, std::int64_t roll_backs, engine::TrainState& policy);
  [[nodiscard]] bool under_way() const { return under_way_; }

  struct Rollout {
    std::vector<Completion> completions;  ///< on the last rank that learns; empty on the others
    /// Seconds of the ranks that write: before they could begin, and of the rollout; 0 on the other
    /// ranks.
    double waited_s = 0.0, worked_s = 0.0;
  };
  /// Waits for the rollout that is under way. Its completions have no lag yet.
  Rollout collect();
  /// Waits for the rollout that is under way, and drops it: the policy goes back, and all of its
  /// weights are sent with the next order.
  void start_over() override;
  /// Waits for them to end; a rollout that is under way is lost. They return `code`.
  void finish(int code);

 private:
  comm::World* link_;
  std::int64_t longest_, rollout_;
  std::int64_t sent_ = -1;  ///< number of updates of the weights that were sent
  bool under_way_ = false;
};

/// The work of a rank that writes: rollouts of the plan's task, as they are ordered, until the end.
/// Returns the code that Generators::finish() was given. `world` and `link`: JobParts; `data`: the
/// training data. Memory: that of a RolloutModel, and the cache of keys and values. Collective over
/// `link`.
int write_rollouts(const planner::Plan& plan,
                   comm::World& world,
                   comm::World& link,
                   const data::Dataset& data);

/// Runs one rank of such a job: `train` on those that learn, write_rollouts() on the others.
/// Returns, on every rank, what `train` returns. Collective.
int run_divided(const planner::Plan& plan,
                comm::World& job,
                const data::Dataset& data,
                const engine::ExperienceKind::Train& train);

}  // namespace tessera::rlhf
