// SPDX-License-Identifier: Apache-2.0
// The ways in which an update is carried out over shards. ShardedOptimizer chooses one for a rule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/shard_store.h"

namespace tessera::parallel {

/// What a strategy works with. World, model and rule outlive it.
struct UpdateContext {
  comm::World& world;
  ModelInstance& model;
  const optim::Rule& rule;
  int stage = 0;  ///< of ZeRO; 0 where one data-parallel rank updates everything
  /// The data-parallel ranks.
  [[nodiscard]] const comm::Group& group() const { return world.group(mesh::AxisSet::dp()); }
};

/// Threads: the rank's own. Methods are collective unless they say otherwise.
class UpdateStrategy {
 public:
  virtual ~UpdateStrategy() = default;
  /// Sets what the strategy needs of the store; before the store is built. Local.
  virtual void configure(ShardStore::Options& /*options*/) {}
  /// One update from the reduced gradients. Gathers of working weights are only started.
  virtual void update(ShardStore& store,
                      GradientReduction& gradients,
                      const optim::UpdateScalars& scalars) = 0;
  /// Whether update `step` takes the gradients that ranks kept (GradientReduction::keep_own).
  /// Local.
  [[nodiscard]] virtual bool compresses(std::int64_t /*step*/) const { return false; }
  /// Appends what the strategy keeps beside the store, as ShardStore::add_pieces() does. Local.
  virtual void add_pieces(std::vector<checkpoint::PieceBytes>& /*out*/, bool /*for_save*/) {}
  /// Loads what add_pieces() for a load does not cover.
  virtual void load(const checkpoint::Checkpoint& /*checkpoint*/) {}
};

/// Elementwise: every range by itself. WholeParameter: at least one trainable parameter needs its
/// norms, or its whole direction. Compressed: of a optim::CompressedRule.
enum class UpdateKind : std::uint8_t { Elementwise, WholeParameter, Compressed };
UpdateKind update_kind(const optim::Rule& rule, ModelInstance& model);

using UpdateFactory = std::unique_ptr<UpdateStrategy> (*)(const UpdateContext&);
/// Registers the strategy of a kind, once, from a static object. Returns true.
bool register_update(UpdateKind kind, UpdateFactory factory);
std::unique_ptr<UpdateStrategy> make_update(const UpdateContext& context);

/// This rank's part of the gradient of a group, at the elements of the group's shard.
at::Tensor gradient_of_shard(const UpdateContext& context,
                             GradientReduction& gradients,
                             std::size_t g);
/// Rule::update() on every shard of every trainable group, group by group: the gather of a group's
/// working weights runs while the next group is updated.
void update_shards(const UpdateContext& context,
                   ShardStore& store,
                   GradientReduction& gradients,
                   const optim::UpdateScalars& scalars);

}  // namespace tessera::parallel
