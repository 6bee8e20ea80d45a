// SPDX-License-Identifier: Apache-2.0
// The strategies for carrying out an update over shards. ShardedOptimizer chooses one for each
// rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/resting_part.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/update_units.h"

namespace tessera::parallel {

struct PlannedStage;

/// The objects that a strategy works on. World, model and rule outlive it.
struct UpdateContext {
  comm::World& world;
  ModelInstance& model;
  const optim::Rule& rule;
  int zero_stage = 0;
  /// The ranks over which the shards of a flat group are spread.
  [[nodiscard]] const comm::Group& fold(int group) const {
    return *model.groups()[static_cast<std::size_t>(group)].ranks.fold;
  }
  /// The ZeRO stage of a flat group; 0 if one rank updates all of it.
  [[nodiscard]] int stage(int group) const { return fold(group).size() == 1 ? 0 : zero_stage; }
};

/// Used only on the rank's own thread. Methods are collective unless stated otherwise.
class UpdateStrategy {
 public:
  virtual ~UpdateStrategy() = default;
  /// Sets the store options that the strategy needs; called before the store is built. Local.
  virtual void configure(ShardStore::Options& /*options*/) {}
  /// Makes one update from the reduced gradients. Gathers of working weights are only started.
  virtual void update(ShardStore& store,
                      GradientReduction& gradients,
                      const optim::UpdateScalars& scalars) = 0;
  /// True if update `step` uses the gradients that ranks kept (GradientReduction::keep_own). Local.
  [[nodiscard]] virtual bool compresses(std::int64_t /*step*/) const { return false; }
  /// Appends the state that the strategy keeps outside the store, as ShardStore::add_pieces() does.
  /// Local.
  virtual void add_pieces(std::vector<checkpoint::PieceBytes>& /*out*/, bool /*for_save*/) {}
  /// Loads what add_pieces() for a load does not cover.
  virtual void load(const checkpoint::Checkpoint& /*checkpoint*/) {}
};

/// Elementwise: every range is updated on its own. WholeParameter: at least one trainable parameter
/// needs its norms or its whole direction. Compressed: the rule is an optim::CompressedRule.
enum class UpdateKind : std::uint8_t { Elementwise, WholeParameter, Compressed };
UpdateKind update_kind(const optim::Rule& rule, ModelInstance& model);

using UpdateFactory = std::unique_ptr<UpdateStrategy> (*)(const UpdateContext&);
/// Returns the bytes of a rank of the stage that the strategy needs in addition to masters and
/// states in the ShardStore. Pure.
using UpdateBytes = std::int64_t (*)(const PlannedStage& stage, const optim::Rule& rule);
/// Registers the strategy of a kind; called once per kind from a static object. `bytes`: nullptr
/// for a strategy that needs nothing. Returns true.
bool register_update(UpdateKind kind, UpdateFactory factory, UpdateBytes bytes);
std::unique_ptr<UpdateStrategy> make_update(const UpdateContext& context);
/// The bytes of the strategy that make_update() will choose.
std::int64_t update_bytes(const PlannedStage& stage, const optim::Rule& rule);

/// This rank's part of a group's gradient, for the elements of the group's shard.
at::Tensor gradient_of_shard(const UpdateContext& context,
                             GradientReduction& gradients,
                             std::size_t g);
/// Returns `x` in the memory in which the store's states are: `x` itself, or a copy on the host,
/// for which the host waits.
at::Tensor beside_states(const ShardStore& store, const at::Tensor& x);
/// gradient_of_shard() in the memory in which the rule updates: that of the host if the store's
/// states are there (StatePlace::on_host); the host then waits for it.
at::Tensor gradient_of_update(const UpdateContext& context,
                              const ShardStore& store,
                              GradientReduction& gradients,
                              std::size_t g);
class EarlyUpdates;
/// An update of the shards of trainable groups that can wait for gradients in between. Used only on
/// the rank's own thread; what it names outlives it. Between calls of advance() it may hold units.
class ShardUpdate {
 public:
  /// `order`: the groups whose units are updated first, in this order; the others follow in
  /// ascending order. `early`: has the new values of some groups already; nullptr: of none.
  ShardUpdate(const UpdateContext& context,
              ShardStore& store,
              GradientReduction& gradients,
              const optim::UpdateScalars& scalars,
              std::span<const int> order = {},
              EarlyUpdates* early = nullptr);
  /// Works through the groups in order, up to the first for which `arrived` is false; it must stay
  /// true for the others, whose gradients are complete. The gather of a group's working weights
  /// runs while the next group is updated.
  void advance(const std::function<bool(std::size_t group)>& arrived);
  [[nodiscard]] const optim::UpdateScalars& scalars() const { return scalars_; }

 private:
  [[nodiscard]] bool is_made(std::size_t group) const;

  const UpdateContext& context_;
  ShardStore& store_;
  GradientReduction& gradients_;
  optim::UpdateScalars scalars_;
  EarlyUpdates* early_;
  std::vector<UpdateAction> actions_;
  std::size_t next_ = 0;  ///< of actions_
  at::Tensor gradient_;   ///< of the group whose units are updated
  HeldPart weights_;      ///< of the same group
  std::map<std::size_t, ShardStore::Lease> leases_;
};
/// Calls Rule::update() on every shard of every trainable group, in the order of update_actions();
/// the gather of a group's working weights runs while the next group is updated. `early`: has the
/// new values of some groups already; nullptr: of none.
void update_shards(const UpdateContext& context,
                   ShardStore& store,
                   GradientReduction& gradients,
                   const optim::UpdateScalars& scalars,
                   EarlyUpdates* early = nullptr);

}  // namespace tessera::parallel
