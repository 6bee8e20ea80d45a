// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/update_strategy.h"

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/early_updates.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/planned_buffers.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

struct Entry {
  UpdateFactory make;
  UpdateBytes bytes;
};

std::map<UpdateKind, Entry>& entries() {
  static std::map<UpdateKind, Entry> instance;
  return instance;
}

const Entry& entry_of(UpdateKind kind) {
  const auto found = entries().find(kind);
  TESSERA_ASSERT(found != entries().end());
  return found->second;
}

bool elementwise(const optim::Rule& rule, const FlatLayout& layout) {
  return std::ranges::all_of(layout.segments(), [&](const Segment& segment) {
    return rule.scope(facts_of(segment)) == optim::Scope::Elementwise;
  });
}

}  // namespace

UpdateKind update_kind(const optim::Rule& rule, ModelInstance& model) {
  if (rule.compressed() != nullptr) return UpdateKind::Compressed;
  const bool simple = std::ranges::all_of(model.groups(), [&](const FlatGroup& group) {
    return !group.trainable || elementwise(rule, group.layout);
  });
  return simple ? UpdateKind::Elementwise : UpdateKind::WholeParameter;
}

bool register_update(UpdateKind kind, UpdateFactory factory, UpdateBytes bytes) {
  return entries().emplace(kind, Entry{factory, bytes}).second;
}

std::unique_ptr<UpdateStrategy> make_update(const UpdateContext& context) {
  return entry_of(update_kind(context.rule, context.model)).make(context);
}

std::int64_t update_bytes(const PlannedStage& stage, const optim::Rule& rule) {
  const bool simple = std::ranges::all_of(stage.buffers, [&](const PlannedBuffer& buffer) {
    return !buffer.group.trainable || elementwise(rule, buffer.layout);
  });
  const UpdateKind kind = rule.compressed() != nullptr ? UpdateKind::Compressed
                          : simple                     ? UpdateKind::Elementwise
                                                       : UpdateKind::WholeParameter;
  const UpdateBytes bytes = entry_of(kind).bytes;
  return bytes == nullptr ? 0 : bytes(stage, rule);
}

at::Tensor gradient_of_shard(const UpdateContext& context,
                             GradientReduction& gradients,
                             std::size_t g) {
  const auto group = static_cast<int>(g);
  return context.stage(group) == 0 ? gradients.gather(group) : gradients.shard(group);
}

at::Tensor beside_states(const ShardStore& store, const at::Tensor& x) {
  if (!store.on_host() || x.is_cpu()) return x;
  at::Tensor out = landing_room(x.numel(), x.scalar_type(), x.device()).view(x.sizes());
  out.copy_(x, /*non_blocking=*/true);
  wait_for_device(x.device());
  return out;
}

at::Tensor gradient_of_update(const UpdateContext& context,
                              const ShardStore& store,
                              GradientReduction& gradients,
                              std::size_t g) {
  return beside_states(store, gradient_of_shard(context, gradients, g));
}

namespace {

void update_unit(const UpdateContext& context,
                 ShardStore& store,
                 ShardStore::Lease& lease,
                 const at::Tensor& gradient,
                 const optim::UpdateScalars& scalars) {
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  lease.stage_weights();
  for (ParamShard& shard : lease.shards()) {
    WidenedShard widened(lease, shard, gradient.const_data_ptr<float>());
    context.rule.update(widened.view(),
                        store.beginnings().scalars_of(shard.segment->info->name, scalars));
    widened.write_back();
    shard.direction.reset();
    shard.norms.clear();
  }
  if (!store.options().local_weights) lease.send_weights();
}

}  // namespace

ShardUpdate::ShardUpdate(const UpdateContext& context,
                         ShardStore& store,
                         GradientReduction& gradients,
                         const optim::UpdateScalars& scalars,
                         std::span<const int> order,
                         EarlyUpdates* early)
    : context_(context), store_(store), gradients_(gradients), scalars_(scalars), early_(early) {
  const std::span<const Unit> units = store.units();
  std::vector<std::size_t> numbers;  // of the units in their order
  std::vector<bool> taken(context.model.groups().size());
  const auto take = [&](std::size_t group) {
    if (taken[group]) return;
    taken[group] = true;
    const auto [first, last] = store.units_of(group);
    for (std::size_t u = first; u < last; ++u)
      numbers.push_back(u);
  };
  for (const int group : order)
    take(static_cast<std::size_t>(group));
  for (std::size_t group = 0; group < taken.size(); ++group)
    take(group);
  std::vector<Unit> ordered;
  ordered.reserve(numbers.size());
  for (const std::size_t u : numbers)
    ordered.push_back(units[u]);
  actions_ = update_actions(ordered, store.options().place.buffers);
  for (UpdateAction& action : actions_) {
    if (action.kind != UpdateActionKind::BeginWrite && action.kind != UpdateActionKind::Publish)
      action.index = numbers[action.index];
  }
}

bool ShardUpdate::is_made(std::size_t group) const {
  return early_ != nullptr && early_->has(group);
}

void ShardUpdate::advance(const std::function<bool(std::size_t group)>& arrived) {
  for (; next_ < actions_.size(); ++next_) {
    const auto [kind, i] = actions_[next_];
    switch (kind) {
      case UpdateActionKind::BeginWrite:
        if (!arrived(i)) return;
        context_.model.groups()[i].weights->begin_write();
        weights_ = store_.hold(i);
        if (!is_made(i)) gradient_ = gradient_of_update(context_, store_, gradients_, i);
        break;
      case UpdateActionKind::Fetch:
        store_.fetch(i);
        break;
      case UpdateActionKind::Update: {
        if (is_made(store_.units()[i].group)) {
          early_->commit(i);
          break;
        }
        const auto lease = leases_.emplace(i, store_.acquire(i, Access::Write)).first;
        update_unit(context_, store_, lease->second, gradient_, scalars_);
        if (!store_.units()[i].travels) leases_.erase(lease);
        break;
      }
      case UpdateActionKind::WriteBack:
        leases_.erase(i);
        break;
      case UpdateActionKind::Settle:
        store_.settle(i);
        break;
      case UpdateActionKind::Publish:
        if (store_.options().local_weights) store_.publish_group(i);
        weights_.let_go();
        context_.model.groups()[i].weights->written();
        gradient_.reset();
        break;
    }
  }
}

void update_shards(const UpdateContext& context,
                   ShardStore& store,
                   GradientReduction& gradients,
                   const optim::UpdateScalars& scalars,
                   EarlyUpdates* early) {
  ShardUpdate(context, store, gradients, scalars, {}, early).advance([](std::size_t) {
    return true;
  });
}

}  // namespace tessera::parallel
