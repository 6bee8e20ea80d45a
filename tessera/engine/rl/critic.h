// SPDX-License-Identifier: Apache-2.0
// The critic: a second trained model, which predicts the expected reward of a completion after each
// of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/rl/completions.h"
#include "tessera/engine/rl/reward_values.h"
#include "tessera/engine/train_state.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/rl/options.h"

// Legend: B completions with their prompts, T tokens.
namespace tessera::engine::rl {

/// Returns the plan of a critic: the policy's with another model, and the layout and the adapter of
/// rl.models.critic; beside a policy in fp16 it is in fp32. If it shares a reward model's trunk and
/// has no adapter, everything before the objective is frozen. Throws as
/// planner::open_model_source(), Error{Config} for a wrong adapter, and Error{Unsupported} for a
/// trunk that cannot be shared.
planner::Plan critic_plan(const planner::Plan& policy, const tasks::RlOptions& options);

/// Optimizer and schedule are the policy's, the learning rate is options.critic.lr. All
/// methods except expect() are collective.
class Critic {
 public:
  /// Throws as critic_plan().
  Critic(const planner::Plan& policy, const tasks::RlOptions& options, comm::World& world);
  void initialize_weights() { state_->initialize_weights(); }
  /// Returns the weights that a reward model shares; none if they are not shared. Call it when the
  /// weights are set.
  [[nodiscard]] Lender lender();
  /// Returns the expected reward after each token, fp64 [B, T] on every rank.
  [[nodiscard]] at::Tensor values(const Rows& rows);
  /// Sets the current values, near which learn() keeps the new ones, and the values to learn.
  void expect(at::Tensor values_BT, at::Tensor returns_BT);
  /// Makes one update on the rows from `first` on, as many as in the policy's batch; `labels_BT`
  /// marks the tokens that count. Adds "critic_loss" and "critic_gnorm".
  void learn(const Rows& rows, const at::Tensor& labels_BT, std::int64_t first, Metrics& metrics);
  /// Returns its part of a checkpoint, under names that begin with "critic.", valid until
  /// release_pieces().
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces() { state_->release_pieces(); }
  /// Adds to the state of rl in a checkpoint's metadata which base the pieces belong to, if they
  /// contain no frozen weights. Not collective.
  void describe(json::Value& state) const;
  /// Throws Error{Config} if the checkpoint was written beside another base.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  Critic(const planner::Plan& plan, const tasks::RlCriticModel& how, comm::World& world);

  comm::World& world_;
  std::int64_t global_batch_, micro_batch_;
  std::string base_fingerprint_;  ///< of the frozen weights that are not saved; empty: all are
  std::string lends_;             ///< the reward model that shares the weights; empty: none
  std::unique_ptr<TrainState> state_;
  at::Tensor values_BT_, returns_BT_;
};

}  // namespace tessera::engine::rl
