// SPDX-License-Identifier: Apache-2.0
// The critic: a second model in training, which says what rewards a completion may expect behind
// each of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/rl/completions.h"
#include "tessera/engine/train_state.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/rl/options.h"

// Legend: B completions with their prompts, T tokens.
namespace tessera::engine::rl {

/// The plan of a critic: the policy's with another model. Errors as planner::open_model_source();
/// Error{Unsupported} in fp16.
planner::Plan critic_plan(const planner::Plan& policy, const tasks::RlOptions& options);

/// Its layout, types and optimizer are the policy's, its learning rate is options.critic.lr. All
/// methods but expect() are collective.
class Critic {
 public:
  /// Errors as critic_plan().
  Critic(const planner::Plan& policy, const tasks::RlOptions& options, comm::World& world);
  void initialize_weights() { state_->initialize_weights(); }
  /// What is expected behind each token, fp64 [B, T] on every rank.
  [[nodiscard]] at::Tensor values(const Rows& rows);
  /// The values of now, which learn() stays near, and what they should have been.
  void expect(at::Tensor values_BT, at::Tensor returns_BT);
  /// One update on the rows from `first` on, as many as the policy's batch has; `labels_BT` says
  /// which of their tokens count. Adds "critic_loss" and "critic_gnorm".
  void learn(const Rows& rows, const at::Tensor& labels_BT, std::int64_t first, Metrics& metrics);
  /// Its part of a checkpoint, under names that begin with "critic.", until release_pieces().
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces() { state_->release_pieces(); }
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  comm::World& world_;
  std::int64_t global_batch_, micro_batch_;
  std::unique_ptr<TrainState> state_;
  at::Tensor values_BT_, returns_BT_;
};

}  // namespace tessera::engine::rl
