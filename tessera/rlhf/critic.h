// SPDX-License-Identifier: Apache-2.0
// The critic: a second trained model, which predicts the expected reward of a completion after each
// of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/train_state.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/model_ranks.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/tasks/rl/options.h"

// Legend: B completions with their prompts, T tokens.
namespace tessera::rlhf {

/// Returns the plan of a critic: the policy's with another model, and the layout, the ranks and the
/// adapter of rl.models.critic; if the policy is in fp16, it is in fp32. If it shares a reward
/// model's trunk and has no adapter, everything before the objective is frozen. Throws as
/// models::open_model_source() and ranks_of(), Error{Config} for a wrong adapter, and
/// Error{Unsupported} for a trunk that cannot be shared.
planner::PlanWithData critic_plan(const planner::PlanWithData& policy,
                                  const tasks::RlOptions& options);

/// Optimizer and schedule are the policy's, the learning rate is options.critic.lr. The critic may
/// have ranks of its own; all methods except expect() and describe() are collective over those that
/// learn.
class Critic {
 public:
  /// `world`: the ranks that learn, which must outlive this object. Throws as critic_plan().
  Critic(const planner::PlanWithData& policy, const tasks::RlOptions& options, comm::World& world);
  void initialize_weights();
  /// Returns the weights that a reward model shares; none if they are not shared. Call it when the
  /// weights are set.
  [[nodiscard]] Lender lender();
  /// Returns the expected reward after each token, [B * T] on the ranks of the critic, and zeros on
  /// other ranks, at once. Collective over the ranks of the critic.
  [[nodiscard]] std::vector<double> own_values(const Rows& rows);
  /// Gives values that own_values() returned to the ranks without the critic.
  void share_values(std::vector<double>& values) const;
  /// Sets the current values, near which learn() keeps the new ones, and the values to learn.
  void expect(at::Tensor values_BT, at::Tensor returns_BT);
  /// Makes one update on the rows from `first` on, as many as in the policy's batch; `labels_BT`
  /// marks the tokens that count. Adds "critic_loss" and "critic_gnorm".
  void learn(const Rows& rows,
             const at::Tensor& labels_BT,
             std::int64_t first,
             engine::Metrics& metrics);
  /// Returns its part of a checkpoint, under names that begin with "critic.", valid until
  /// release_pieces().
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces();
  /// Adds to the state of rl in a checkpoint's metadata which base the pieces belong to, if they
  /// contain no frozen weights. Not collective.
  void describe(json::Value& state) const;
  /// Throws Error{Config} if the checkpoint was written with another base.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  /// learn() on the ranks of the critic: its loss and the norm of its gradient.
  std::vector<double> update(const Rows& rows, const at::Tensor& labels_BT, std::int64_t first);

  Critic(const planner::PlanWithData& plan,
         const tasks::RlCriticModel& how,
         const std::optional<ModelRanks>& ranks,
         comm::World& world);

  comm::World& all_;  ///< the ranks that learn
  std::shared_ptr<const ModelWorld> ranks_;
  std::int64_t global_batch_, micro_batch_;
  std::string base_fingerprint_;  ///< of the frozen weights that are not saved; empty: all are
  std::string lends_;             ///< the reward model that shares the weights; empty: none
  std::unique_ptr<engine::TrainState> state_;  ///< nullptr on ranks without the critic
  at::Tensor values_BT_, returns_BT_;
};

}  // namespace tessera::rlhf
