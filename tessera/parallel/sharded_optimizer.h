// SPDX-License-Identifier: Apache-2.0
// Master weights and optimizer state, sharded over data-parallel ranks (ZeRO stages 1 to 3) or
// replicated (stage 0). Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward
// training trillion parameter models".
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// Updates the shards of a ShardStore by the UpdateStrategy that the rule needs.
///
/// Memory: that of the store; masters or states of 16 bits: one parameter in fp32 during an update,
/// all of them between pieces() and what ends it. Threads: the rank's own. All methods are
/// collective.
///
/// Every strategy gives the same bits on any number of ranks, but for compressed rules: a
/// optim::CompressedRule works in stages 0 and 1, with the same bits in both on the same ranks; one
/// with local_weights() in stage 0; and none where tensor-parallel or context-parallel ranks share
/// a model.
class ShardedOptimizer {
 public:
  /// stage: 0 to 3, as the model's weights are spread. `rule` must outlive this. `trained_alone`:
  /// pieces() leave out frozen parameters.
  ShardedOptimizer(comm::World& world,
                   ModelInstance& model,
                   const optim::Rule& rule,
                   int stage,
                   ParamSettings settings,
                   KeptTypes kept = {},
                   bool trained_alone = false);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// First weights: every rank fills only what it owns, then whole working weights are gathered.
  void fill(const FillRange& source) { store_->fill(source); }
  /// One update from the reduced gradients; the gather of whole weights is only started.
  void update(GradientReduction& gradients, const optim::UpdateScalars& scalars) {
    strategy_->update(*store_, gradients, scalars);
  }
  /// Whether update `step` takes the gradients that ranks kept (GradientReduction::keep_own).
  [[nodiscard]] bool compresses(std::int64_t step) const { return strategy_->compresses(step); }
  /// Exchanges the weights with a state of that name, such as their average, until it is called
  /// again.
  void exchange_weights(std::string_view state) {
    wait_weights();
    store_->exchange_masters(state);
    wait_weights();
  }
  /// Until every rank has the working weights that it keeps.
  void wait_weights();

  /// What this rank owns: master weights under the parameter's name, state as
  /// "optimizer.<state>.<name>", all fp32. With `for_save` every element of the job appears on
  /// exactly one rank; without it on every rank that needs it. Call wait_weights() first, and
  /// release_pieces() after.
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces(bool for_save);
  /// After pieces() were read.
  void release_pieces() { store_->release_pieces(); }
  /// Everything of a checkpoint that any layout wrote, and working weights from it, gathered. For a
  /// parameter of which it has no state the rule counts updates from here on, as torch does.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  ModelInstance& model_;
  std::unique_ptr<UpdateStrategy> strategy_;
  std::unique_ptr<ShardStore> store_;
};

}  // namespace tessera::parallel
