// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/rollout_model.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/assembled.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/model_ranks.h"
#include "tessera/tasks/rl/rl.h"
#include "tessera/tasks/task.h"

namespace tessera::rlhf {
namespace {

const tasks::RlOptions& options_of(const planner::Plan& plan) {
  return tasks::as_rl(planner::task_of(plan).get())->options();
}

/// The layout of `ranks` ranks that hold the weights for rollouts.
parallel::Layout layout_of_writers(const planner::Plan& plan, int ranks) {
  parallel::Layout out = plan.layout();
  const int tensor = rollout_tensor(plan);
  out.data_ranks = out.shard_ranks = ranks / tensor;
  out.grid = parallel::ranks_in_a_row(plan.model().resolved.model, tensor);
  out.zero_stage = 0;
  return out;
}

}  // namespace

int rollout_tensor(const planner::Plan& plan) {
  const tasks::RlOptions& options = options_of(plan);
  const std::int64_t otherwise = options.overlap > 0 ? 1 : plan.layout().grid.size();
  return static_cast<int>(options.rollout_tensor.value_or(otherwise));
}

bool regroups(const planner::Plan& plan) {
  return options_of(plan).overlap == 0 && rollout_tensor(plan) != plan.layout().grid.size();
}

mesh::Mesh rollout_mesh(const planner::Plan& plan, int ranks) {
  return mesh_of({.first = 0, .count = ranks, .tensor = rollout_tensor(plan)},
                 plan.model().resolved);
}

std::int64_t rollout_weight_bytes(const planner::Plan& plan) {
  std::int64_t elements = 0;
  for (const auto& param : nn::parameters_of(plan.model().resolved.model))
    elements += param->numel();
  return elements * static_cast<std::int64_t>(size_of(plan.layout().working)) /
         rollout_tensor(plan);
}

void for_each_whole(engine::TrainState& policy, bool all, const TakeWhole& take) {
  policy.wait();
  parallel::ModelInstance& model = policy.model();
  parallel::FlatGroup* gathered = nullptr;
  const auto release = [&] {
    if (gathered != nullptr) std::exchange(gathered, nullptr)->weights->release();
  };
  const auto& order = model.canonical_order();
  for (std::size_t i = 0; i < order.size(); ++i) {
    parallel::FlatGroup& of = model.groups()[static_cast<std::size_t>(order[i].first)];
    if (!all && !of.trainable) continue;
    if (gathered != &of) release();
    if (of.weights->comes_and_goes() && !of.weights->gathered()) gathered = &of;
    of.weights->wait();
    const FlatParam& param = of.layout.params()[static_cast<std::size_t>(order[i].second)];
    const ParamInfo& info = *param.info;
    const at::Tensor held = view_of(of.weights->whole(), param);
    take(i,
         info,
         info.cut() ? parallel::assembled(
                          info, held.reshape({-1}), policy.world(), *model.tensor_parallel()->group)
                    : held);
  }
  release();
}

RolloutModel::RolloutModel(const planner::Plan& plan, comm::World& world)
    : plan_(planner::with(plan, layout_of_writers(plan, world.size()))),
      model_(
          plan_.model().resolved.model, plan_.layout().weight_options(plan_.model().rules), world),
      gather_(model_, {}),
      executor_(model_, {&gather_}) {}

parallel::FlatGroup& RolloutModel::group_of(std::size_t number) {
  return model_.groups()[static_cast<std::size_t>(model_.canonical_order()[number].first)];
}

const ParamInfo& RolloutModel::info(std::size_t number) {
  const auto param = static_cast<std::size_t>(model_.canonical_order()[number].second);
  return *group_of(number).layout.params()[param].info;
}

at::Tensor RolloutModel::held(std::size_t number) {
  parallel::FlatGroup& group = group_of(number);
  const auto param = static_cast<std::size_t>(model_.canonical_order()[number].second);
  return view_of(group.weights->own(), group.layout.params()[param]);
}

void RolloutModel::put(std::size_t number, const at::Tensor& whole) {
  const ParamInfo& of = info(number);
  held(number).copy_(of.cut() ? parallel::box_of(whole, of.held()) : whole);
}

void RolloutModel::write(const std::function<void()>& change) {
  for (parallel::FlatGroup& group : model_.groups())
    group.weights->begin_write();
  change();
  for (parallel::FlatGroup& group : model_.groups())
    group.weights->written();
  for (parallel::FlatGroup& group : model_.groups())
    group.weights->settle();
}

void RolloutModel::receive(bool all, const Fill& fill) {
  write([&] {
    for (std::size_t i = 0; i < model_.canonical_order().size(); ++i) {
      if (!all && !group_of(i).trainable) continue;
      const at::Tensor mine = held(i);
      const bool cut = info(i).cut();
      const at::Tensor room = cut ? at::empty(info(i).shape, mine.options()) : mine;
      fill(info(i), room);
      if (cut) put(i, room);
    }
  });
}

void RolloutModel::follow(engine::TrainState& policy) {
  if (written_ == policy.steps()) return;
  write([&] {
    for_each_whole(
        policy,
        /*all=*/written_ < 0,
        [&](std::size_t number, const ParamInfo&, const at::Tensor& whole) { put(number, whole); });
  });
  written_ = policy.steps();
}

}  // namespace tessera::rlhf
