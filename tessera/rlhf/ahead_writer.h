// SPDX-License-Identifier: Apache-2.0
// Obtains rollouts from ranks that write each one while the one before is learned (rl.overlap), or
// from the ledger; without such ranks, a rollout is written when it is needed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/data/sample_order.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/train_state.h"
#include "tessera/rlhf/generators.h"
#include "tessera/rlhf/rollout_model.h"
#include "tessera/rlhf/rollout_writer.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// The policy of a rollout is that of the update which the rollout before began with, except that
/// the first one is written by the policy that learns from it. When a checkpoint is saved, the
/// ledger has the rollout that is under way, because the policy that writes it is in no checkpoint.
class AheadWriter : protected RolloutWriter {
 protected:
  /// `generators`: nullptr if all ranks write.
  AheadWriter(const planner::Plan& plan,
              const tasks::Rl& task,
              comm::World& world,
              engine::TrainState& policy,
              const tasks::Prompts& prompts,
              Generators* generators);

  /// Throws Error{Unsupported} if the options ask for ranks that write, and there are none.
  void require_generators() const;
  /// Makes the copy of the policy that writes in other groups of ranks, if the plan has one.
  void make_copy();
  /// Returns the version of the last rollout that the ledger of a run resumed after `step` updates
  /// may have.
  [[nodiscard]] std::int64_t last_kept(std::int64_t step) const;
  /// Reads the rollout that is learned after `step` updates, and the one that was under way then;
  /// call it on the ranks that read the ledger.
  void read_kept(const std::filesystem::path& ledger, std::int64_t step);
  /// Sets completions and rows to those of the rollout at `place`, of which `batch` is an update,
  /// and lets the next one be written. Collective.
  void obtain(const Place& place, const data::GlobalBatch& batch);
  /// Waits for the rollout that is under way, if there is one, and appends it to the ledger.
  /// Collective.
  void collect();
  /// Returns the number of updates between the policy that wrote the rollout and the one that began
  /// to learn from it.
  [[nodiscard]] std::int64_t lag() const { return completions_.front().lag; }
  /// Returns whether updates report the ratios of the policy to the one that wrote the rollout,
  /// whose log-probabilities do not come back from a device.
  [[nodiscard]] bool tells_ratios() const {
    return lag() > 0 && world_.transport().device() == Device();
  }
  /// With rl.overlap, adds what update number `update` of the rollout shows of it: "staleness", the
  /// number of updates since the policy that wrote it, and the shares of time that both sides
  /// waited before this rollout, "learners_waited" and "generators_waited".
  void add_overlap(engine::Metrics& metrics, std::int64_t update) const;

  engine::TrainState& policy_;

 private:
  [[nodiscard]] Place place_after(const data::GlobalBatch& batch) const;
  void order(const Place& place);
  /// Exchanges the current rollout and the next one.
  void turn();

  Generators* generators_;
  std::unique_ptr<comm::World> regrouped_;  ///< nullptr: the policy itself writes
  std::optional<RolloutModel> copy_;
  data::BatchPlan batches_;
  std::optional<KeptRollout> kept_ahead_;
  struct {
    std::int64_t version = -1, lag = 0;
    engine::StepTokens drawn;
    std::vector<Completion> completions;  ///< empty while it is under way
  } next_;
  double obtained_at_ = 0.0;  ///< time when the last rollout was obtained
  double waited_s_ = 0.0;     ///< since then, for the ranks that write
  double learners_waited_ = 0.0, generators_waited_ = 0.0;
};

}  // namespace tessera::rlhf
