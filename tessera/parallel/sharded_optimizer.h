// SPDX-License-Identifier: Apache-2.0
// Master weights and optimizer state, sharded over data-parallel ranks (ZeRO stages 1 to 3) or
// replicated (stage 0). Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward
// training trillion parameter models".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/early_updates.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// Updates the shards of a ShardStore by the UpdateStrategy that the rule needs.
///
/// Memory: that of the store. With 16-bit masters or states, one parameter in fp32 during an
/// update, and all of them between pieces() and release_pieces() or the next update. Used only on
/// the rank's own thread. All methods are collective.
///
/// Every strategy gives the same bits on any number of ranks, except for compressed rules. An
/// optim::CompressedRule works in stages 0 and 1, with the same bits in both on the same ranks; a
/// rule with local_weights() works in stage 0; none works if tensor-parallel or context-parallel
/// ranks share a model.
class ShardedOptimizer {
 public:
  /// `stage`: 0 to 3, the same as for the model's weights. `rule` must outlive this.
  /// `trained_alone`: pieces() omits frozen parameters. `place`: not for compressed rules.
  ShardedOptimizer(comm::World& world,
                   ModelInstance& model,
                   const optim::Rule& rule,
                   int stage,
                   ParamSettings settings,
                   KeptTypes kept = {},
                   bool trained_alone = false,
                   StatePlace place = {});
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Initializes the weights: every rank fills only what it owns, then the working weights are
  /// gathered.
  void fill(const FillRange& source) { store_->fill(source); }
  /// Follows ModelInstance::freeze_sets() for the groups that changed, after `updates` updates:
  /// what is trained now gets states, and what is frozen now loses them. Not for compressed rules
  /// and states of Extent::Rows and Columns. Call wait_weights() before, and leave no pieces in
  /// use.
  void follow_model(const std::vector<int>& changed, std::int64_t updates);
  /// Makes one update from the reduced gradients; the gather of the working weights is only
  /// started.
  void update(GradientReduction& gradients, const optim::UpdateScalars& scalars);
  /// Before the passes of a step: lets updates begin during the backward pass, if the place of the
  /// states asks for it (StatePlace::early_updates, streamed). `assumed`: the scalars of the update
  /// if nothing is clipped. `streams`: updates may be streamed in this step. `before_change`:
  /// called before the first of these changes values; empty: nothing. Afterwards call update() or
  /// skip_update(), the latter not in a step whose updates are streamed. Local.
  void begin_step(GradientReduction& gradients,
                  const optim::UpdateScalars& assumed,
                  bool streams = true,
                  std::function<void()> before_change = {});
  /// True if streamed updates of this step changed values already.
  [[nodiscard]] bool has_changed() const { return changed_; }
  /// Drops the updates that began in the step.
  void skip_update();
  /// The updates of the last step that began early.
  [[nodiscard]] EarlyCounts early_counts() const;
  /// True if update `step` uses the gradients that ranks kept (GradientReduction::keep_own).
  [[nodiscard]] bool compresses(std::int64_t step) const { return strategy_->compresses(step); }
  /// Swaps the weights with the state of that name, such as their average; a second call swaps them
  /// back.
  void exchange_weights(std::string_view state) {
    wait_weights();
    store_->exchange_masters(state);
    wait_weights();
  }
  /// Waits until every rank has the working weights that it keeps.
  void wait_weights();

  /// Calls `visit` for ranges of all trained parameters, so that every element of the job is
  /// visited on exactly one rank. Call it after the gradients are reduced and before update().
  /// Without `gradients` only weights are visited. Cost: in stage 0 a gather of the gradients.
  void visit_trained(GradientReduction* gradients, const TrainedVisitor& visit);

  /// The state that this rank owns, all in fp32: master weights under the parameter's name, states
  /// as "optimizer.<state>.<name>". With `for_save` every element of the job appears on exactly one
  /// rank; without it, on every rank that needs it. Call wait_weights() before and release_pieces()
  /// after.
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces(bool for_save);
  /// Call after the pieces were read.
  void release_pieces() { store_->release_pieces(); }
  /// Loads weights and states from a checkpoint of any layout and gathers the working weights. For
  /// a parameter without state in the checkpoint, the rule counts updates from here on, as torch
  /// does.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  void stream(GradientReduction& gradients,
              const optim::UpdateScalars& scalars,
              std::function<void()> before_change);

  UpdateContext context_;
  ModelInstance& model_;
  std::unique_ptr<UpdateStrategy> strategy_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<EarlyUpdates> early_;  ///< nullptr: no update is made twice
  bool streamed_ = false;                ///< StatePlace::streamed, and the rule allows it
  std::optional<ShardUpdate> update_;    ///< of this step, if it is streamed
  std::vector<bool> arrived_;            ///< of this step: groups whose gradient is complete
  bool changed_ = false;
};

}  // namespace tessera::parallel
