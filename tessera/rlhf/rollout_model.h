// SPDX-License-Identifier: Apache-2.0
// A copy of the policy's weights that only writes rollouts: on ranks of its own (rl.overlap), or in
// other groups of tensor-parallel ranks than the training (rl.rollout_tensor).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/engine/train_state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/weight_gather.h"
#include "tessera/planner/plan.h"
#include "tessera/tensor/param.h"

namespace tessera::rlhf {

/// Number of the world of a policy's copy on the ranks that learn (comm::World::part).
constexpr int kCopyWorld = 4;

/// Returns the number of ranks that share each layer while rollouts are written.
int rollout_tensor(const planner::Plan& plan);
/// Returns whether ranks that alternate between learning and writing need a copy for the latter.
bool regroups(const planner::Plan& plan);
/// Returns the mesh of `ranks` ranks that write.
mesh::Mesh rollout_mesh(const planner::Plan& plan, int ranks);
/// Returns the bytes of the copy's weights on each rank.
std::int64_t rollout_weight_bytes(const planner::Plan& plan);

/// Calls `take` with each parameter of the policy, in the order of the model: of the trained ones,
/// or of `all`. `number`: its position in that order, in which all count; `whole`: has its global
/// shape, and is valid during the call. Memory: in ZeRO stage 3, one block's weights; if ranks
/// share layers, one parameter's. Collective over the ranks that learn.
using TakeWhole =
    std::function<void(std::size_t number, const ParamInfo& info, const at::Tensor& whole)>;
void for_each_whole(engine::TrainState& policy, bool all, const TakeWhole& take);

/// Weights in the policy's working type, whole on each group of rollout_tensor() ranks; neither
/// masters nor moments. Used only on the rank's own thread.
class RolloutModel {
 public:
  /// `world`: the ranks that write, of the mesh rollout_mesh(), which must outlive this object.
  RolloutModel(const planner::Plan& plan, comm::World& world);
  /// Returns the plan of the ranks that write.
  [[nodiscard]] const planner::Plan& plan() const { return plan_; }
  [[nodiscard]] parallel::Executor& executor() { return executor_; }

  /// Sets the weights of the trained parameters, or of all: `fill` writes a parameter into `room`,
  /// which has its global shape and is contiguous.
  using Fill = std::function<void(const ParamInfo& info, const at::Tensor& room)>;
  void receive(bool all, const Fill& fill);
  /// Sets the weights to those of the policy, unless they are: all at first, later the trained
  /// ones. Collective over the ranks that learn, which are those of the world.
  void follow(engine::TrainState& policy);

 private:
  /// Calls `change`, which may write the weights.
  void write(const std::function<void()>& change);
  [[nodiscard]] parallel::FlatGroup& group_of(std::size_t number);
  /// Returns the memory of what this rank holds of a parameter.
  [[nodiscard]] at::Tensor held(std::size_t number);
  [[nodiscard]] const ParamInfo& info(std::size_t number);
  void put(std::size_t number, const at::Tensor& whole);

  planner::Plan plan_;
  parallel::ModelInstance model_;
  parallel::WeightGather gather_;
  parallel::Executor executor_;
  std::int64_t written_ = -1;  ///< the number of updates of the policy that was followed
};

}  // namespace tessera::rlhf
