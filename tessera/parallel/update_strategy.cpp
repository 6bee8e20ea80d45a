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

void update_shards(const UpdateContext& context,
                   ShardStore& store,
                   GradientReduction& gradients,
                   const optim::UpdateScalars& scalars,
                   EarlyUpdates* early) {
  const auto is_made = [&](std::size_t group) { return early != nullptr && early->has(group); };
  at::Tensor gradient;  // of the group whose units are updated
  HeldPart weights;     // of the same group
  std::map<std::size_t, ShardStore::Lease> leases;
  for (const auto& [kind, i] : update_actions(store.units(), store.options().place.buffers)) {
    switch (kind) {
      case UpdateActionKind::BeginWrite:
        context.model.groups()[i].weights->begin_write();
        weights = store.hold(i);
        if (!is_made(i)) gradient = gradient_of_update(context, store, gradients, i);
        break;
      case UpdateActionKind::Fetch:
        store.fetch(i);
        break;
      case UpdateActionKind::Update: {
        if (is_made(store.units()[i].group)) {
          early->commit(i);
          break;
        }
        const auto lease = leases.emplace(i, store.acquire(i, Access::Write)).first;
        update_unit(context, store, lease->second, gradient, scalars);
        if (!store.units()[i].travels) leases.erase(lease);
        break;
      }
      case UpdateActionKind::WriteBack:
        leases.erase(i);
        break;
      case UpdateActionKind::Settle:
        store.settle(i);
        break;
      case UpdateActionKind::Publish:
        if (store.options().local_weights) store.publish_group(i);
        weights.let_go();
        context.model.groups()[i].weights->written();
        gradient.reset();
        break;
    }
  }
}

}  // namespace tessera::parallel
