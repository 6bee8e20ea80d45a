// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/shard_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

template <class Is>
bool any_state(std::span<const ParamShard> shards, const Is& is) {
  return std::ranges::any_of(shards, [&](const ParamShard& shard) {
    return std::ranges::any_of(shard.states,
                               [&](const ShardState& state) { return is(shard, state); });
  });
}

}  // namespace

std::string piece_name(const ShardState& state, const ParamInfo& info) {
  return fmt::format("optimizer.{}.{}", state.name, info.name);
}

ShardStore::ShardStore(comm::World& world,
                       ModelInstance& model,
                       const optim::Rule& rule,
                       Options options)
    : world_(world), model_(model), rule_(rule), options_(std::move(options)) {
  TESSERA_ASSERT(options_.kept.masters == DType::F32 || options_.kept.masters == model_.working());
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  const StatePlace& place = options_.place;
  if (place.tier != nullptr) {
    TESSERA_ASSERT(!options_.make_state && !options_.local_weights &&
                   (place.on_host || device_of(world).is_cpu()));
    buffers_ = std::make_unique<UnitBuffers>(*place.tier, place.buffers);
  }
  on_host_ = place.on_host && !device_of(world).is_cpu();
  bool moves = on_host_;
  for (std::size_t g = 0; g < model_.groups().size(); ++g)
    moves = moves || apart(g);
  TESSERA_REQUIRE(!moves || options_.kept.masters == DType::F32,
                  Unsupported,
                  "masters and states, or weights, on the host of a device need fp32 masters",
                  "set bf16.bf16_master_weights_and_grads to false, or the devices of "
                  "zero_optimization.offload_optimizer and offload_param to \"none\"");
  slots_.resize(model_.groups().size());
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    // Every rank packs all of the weights that it unpacks later.
    const bool packed = group.weights->packed() != nullptr;
    slots_[g].range =
        owned_range(group.layout, packed ? 0 : options_.stage, group.ranks.fold->index);
    TESSERA_ASSERT(packed || group.weights->own().numel() == slots_[g].range.numel);
    cut(g);
    make_values(g);
  }
}

/// Appends the units of a group. They do not depend on whether it is trained.
void ShardStore::cut(std::size_t g) {
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  const bool packed = group.weights->packed() != nullptr;
  std::vector<UnitParam> params;
  for (const Segment& segment : group.layout.segments()) {
    const Segment range = slot.range.of(segment);
    if (range.numel == 0) continue;
    const bool whole = packed || options_.make_state ||
                       rule_.scope(facts_of(segment)) == optim::Scope::WholeTensor;
    params.push_back({range.begin - slot.range.begin, range.numel, whole});
  }
  slot.first_unit = units_.size();
  const std::vector<Unit> units =
      cut_units(g, slot.range.numel, params, options_.place.unit_elements);
  slot.num_units = units.size();
  units_.insert(units_.end(), units.begin(), units.end());
  values_.resize(units_.size());
}

/// Allocates the masters and states of a group, all zero.
void ShardStore::make_values(std::size_t g) {
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  const auto [first, last] = units_of(g);
  // A frozen parameter has only its working value.
  const bool masters =
      group.trainable &&
      (apart(g) ||
       has_separate_masters(model_.working(), options_.kept.masters, options_.local_weights));
  slot.shards.clear();
  std::vector<std::int64_t> bytes;
  for (std::size_t u = first; u < last; ++u) {
    UnitValues& values = values_[u];
    units_[u].trained = group.trainable;
    units_[u].travels = buffers_ != nullptr && group.trainable &&
                        StatePlace::rests(units_[u], slot.range.numel, options_.place.share);
    values = {.first = slot.shards.size(),
              .device = on_host_ ? c10::Device(c10::DeviceType::CPU) : device_of(world_)};
    if (masters) values.masters = make_kept(u, optim::KeptIn::Type, DType::F32, units_[u].numel);
    for (std::size_t s = 0; s < group.layout.segments().size(); ++s)
      add_shard(u, s);
    values.count = slot.shards.size() - values.first;
    bytes.push_back(bytes_of(u));
    units_[u].travels = bytes.back() > 0;
  }
  if (buffers_) buffers_->set_units(first, bytes, "masters and states of " + group.layout.name());
}

void ShardStore::add_shard(std::size_t u, std::size_t s) {
  const Unit& unit = units_[u];
  const FlatGroup& group = model_.groups()[unit.group];
  Slot& slot = slots_[unit.group];
  const Segment& segment = group.layout.segments()[s];
  const std::int64_t begin = slot.range.begin + unit.begin;
  const Segment range = segment.within(begin, begin + unit.numel);
  if (range.numel == 0) return;
  ParamShard shard;
  shard.segment = &segment;
  shard.group = static_cast<int>(unit.group);
  shard.segment_index = static_cast<int>(s);
  shard.unit = u;
  shard.at = range.begin - slot.range.begin;
  shard.first = range.begin - segment.begin;
  shard.numel = range.numel;
  shard.facts = facts_of(segment);
  if (options_.settings) shard.setting = options_.settings(*segment.info);
  if (group.trainable) {
    for (const optim::StateSpec& state : rule_.state(shard.facts)) {
      if (state.extent != optim::Extent::Elements) continue;
      shard.states.push_back(make_state(shard, state));
      shard.states.back().begins_as_weights = state.begins_as_weights;
    }
  }
  slot.shards.push_back(std::move(shard));
}

KeptState ShardStore::make_kept(std::size_t u,
                                optim::KeptIn kept_in,
                                DType type,
                                std::int64_t numel) const {
  return units_[u].travels ? KeptState::resting(kept_in, type, numel)
                           : KeptState::zeros(kept_in, type, numel, values_[u].device);
}

ShardState ShardStore::make_state(const ParamShard& shard, const optim::StateSpec& spec) const {
  if (options_.make_state) return options_.make_state(shard, shard.states.size(), spec.name);
  const optim::KeptIn kept_in = optim::kept_in(rule_, shard.facts, shard.states.size());
  return {spec.name, make_kept(shard.unit, kept_in, options_.kept.states, shard.numel)};
}

void ShardStore::follow_model(std::size_t g, std::int64_t updates) {
  TESSERA_ASSERT(!options_.local_weights && !options_.make_state);
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  const FlatGroup& group = model_.groups()[g];
  make_values(g);
  const auto [first, last] = units_of(g);
  for (std::size_t u = first; u < last; ++u) {
    if (!values_[u].masters.defined()) continue;
    const Lease lease = acquire(u, Access::Write);
    masters_of(u).copy_(working_of(u));
  }
  for (const FlatParam& param : group.layout.params()) {
    const std::string& name = param.info->name;
    if (group.trainable && !rule_.state(facts_of(*param.info)).empty()) {
      beginnings_.begin(name, updates);
    } else {
      beginnings_.forget(name);
    }
  }
  for (std::size_t u = first; u < last; ++u)
    begin_as_weights(u, [](const std::string&) { return true; });
}

std::span<ParamShard> ShardStore::shards_of(std::size_t u) {
  return std::span(slots_[units_[u].group].shards).subspan(values_[u].first, values_[u].count);
}

ParamShard* ShardStore::find(int group, int segment) {
  for (ParamShard& shard : shards(static_cast<std::size_t>(group))) {
    if (shard.segment_index == segment) return &shard;
  }
  return nullptr;
}

bool ShardStore::apart(std::size_t g) const {
  const at::Tensor& own = model_.groups()[g].weights->own();
  const bool states_on_cpu = on_host_ || device_of(world_).is_cpu();
  return own.defined() && own.is_cpu() != states_on_cpu;
}

at::Tensor ShardStore::working_of(std::size_t u) const {
  const at::Tensor& own = model_.groups()[units_[u].group].weights->own();
  return own.defined() ? own.narrow(0, units_[u].begin, units_[u].numel) : own;
}

at::Tensor ShardStore::masters_of(std::size_t u) const {
  return values_[u].masters.defined() ? values_[u].masters.stored() : working_of(u);
}

void ShardStore::each_value(std::size_t u,
                            const std::function<void(KeptState& kept, std::int64_t at)>& fn) {
  if (!units_[u].travels) return;
  std::int64_t at = 0;
  const auto next = [&](KeptState& kept) {
    if (!kept.defined()) return;
    fn(kept, at);
    at += kept.bytes();
  };
  next(values_[u].masters);
  for (ParamShard& shard : shards_of(u)) {
    for (ShardState& state : shard.states)
      next(state.kept);
  }
}

std::int64_t ShardStore::bytes_of(std::size_t u) {
  std::int64_t bytes = 0;
  each_value(u, [&](const KeptState& kept, std::int64_t at) { bytes = at + kept.bytes(); });
  return bytes;
}

ShardStore::Lease ShardStore::acquire(std::size_t unit, Access access) {
  return {*this, unit, access};
}

void ShardStore::fetch(std::size_t unit) {
  if (units_[unit].travels) buffers_->fetch(unit);
}

void ShardStore::settle(std::size_t unit) {
  if (units_[unit].travels) buffers_->settle(unit);
}

ShardStore::Values ShardStore::values(std::size_t unit) {
  Values out{values_[unit].masters, {}};
  for (const ParamShard& shard : shards_of(unit)) {
    for (const ShardState& state : shard.states)
      out.states.push_back(state.kept);
  }
  return out;
}

void ShardStore::exchange_values(std::size_t unit, Values& other) {
  TESSERA_ASSERT(!units_[unit].travels && values_[unit].masters.defined());
  std::swap(values_[unit].masters, other.masters);
  std::size_t next = 0;
  for (ParamShard& shard : shards_of(unit)) {
    for (ShardState& state : shard.states)
      std::swap(state.kept, other.states[next++]);
  }
}

HeldPart ShardStore::hold(std::size_t g) {
  std::vector<FlatGroup>& groups = model_.groups();
  if (groups[g].weights->resting() == nullptr) return {};
  HeldPart out(*groups[g].weights, /*changed=*/true);
  // The part before the last one is stored by now, and its buffer can be used to read the next.
  std::vector<RestingPart*> before;
  for (std::size_t i = g; i-- > 0 && before.size() < 2;) {
    if (RestingPart* const part = groups[i].weights->resting()) before.push_back(part);
  }
  if (before.size() == 2) before.back()->settle();
  for (std::size_t i = g + 1; i < groups.size(); ++i) {
    RestingPart* const part = groups[i].weights->resting();
    if (part == nullptr || !groups[i].trainable) continue;
    part->fetch();
    break;
  }
  return out;
}

void ShardStore::visit(std::size_t first,
                       std::size_t last,
                       Access access,
                       const std::function<void(const Lease&)>& work) {
  const auto buffers = static_cast<std::size_t>(options_.place.buffers);
  HeldPart weights;  // of the group of the unit
  for (std::size_t u = first; u < last; ++u) {
    if (u == first || units_[u].group != units_[u - 1].group) {
      weights.let_go();
      if (access == Access::Write || masters_rest(u))
        weights = HeldPart(weights_of(u), access == Access::Write);
    }
    const Lease lease = acquire(u, access);
    if (u + 1 >= first + buffers) settle(u + 1 - buffers);
    if (u + 1 < last) fetch(u + 1);
    work(lease);
  }
  for (std::size_t u = first; u < last; ++u)
    settle(u);
}

ShardStore::Lease::Lease(ShardStore& store, std::size_t unit, Access access)
    : store_(&store), unit_(unit), access_(access) {
  // Masters of their own suffice to those who only read.
  if (access == Access::Write || store.masters_rest(unit))
    weights_ = HeldPart(store.weights_of(unit), access == Access::Write);
  if (!store.units_[unit].travels) return;
  const std::span<std::byte> memory = store.buffers_->acquire(unit);
  store.each_value(unit, [&](KeptState& kept, std::int64_t at) {
    kept.attach(
        memory.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(kept.bytes())));
  });
}

ShardStore::Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      unit_(other.unit_),
      access_(other.access_),
      weights_(std::move(other.weights_)),
      staged_(std::move(other.staged_)) {}

ShardStore::Lease::~Lease() {
  if (store_ == nullptr || !store_->units_[unit_].travels) return;
  store_->each_value(unit_, [](KeptState& kept, std::int64_t) { kept.detach(); });
  store_->buffers_->release(unit_, access_ == Access::Write);
}

at::Tensor ShardStore::Lease::masters(const ParamShard& shard) const {
  const at::Tensor all = store_->masters_of(unit_);
  const std::int64_t at = shard.at - store_->units_[unit_].begin;
  return all.defined() ? all.narrow(0, at, shard.numel) : all;
}

void ShardStore::Lease::stage_weights() {
  const std::size_t group = store_->units_[unit_].group;
  if (!store_->apart(group) || store_->model_.working() == DType::F32) return;
  const at::Tensor working = store_->working_of(unit_);
  // Gaps between parameters are sent too.
  staged_ = store_->on_host_
                ? landing_room(working.numel(), working.scalar_type(), working.device()).zero_()
                : at::zeros({working.numel()}, working.options().device(store_->model_.device()));
}

void ShardStore::Lease::send_weights() {
  if (!store_->apart(store_->units_[unit_].group)) return;
  const at::Tensor working = store_->working_of(unit_);
  if (!staged_.defined() && store_->on_host_) {
    staged_ = landing_room(working.numel(), working.scalar_type(), working.device());
    staged_.copy_(store_->masters_of(unit_));
  }
  const at::Tensor& from = staged_.defined() ? staged_ : store_->masters_of(unit_);
  // The host waits for copies to memory that is not pinned: buffers of what rests on a disk.
  working.copy_(from, /*non_blocking=*/!working.is_cpu() || working.is_pinned());
  staged_.reset();
}

void ShardStore::Lease::send(const at::Tensor& weights) const {
  const at::Tensor working = store_->working_of(unit_);
  const at::Tensor staged =
      landing_room(working.numel(), working.scalar_type(), working.device()).copy_(weights);
  working.copy_(staged, /*non_blocking=*/true);
}

optim::ShardView ShardStore::Lease::view(ParamShard& shard, const float* gradient) const {
  TESSERA_ASSERT(shard.unit == unit_);
  const ModelInstance& model = store_->model_;
  optim::ShardView view;
  const at::Tensor own = masters(shard);
  if (own.defined() && own.scalar_type() == at::kFloat) view.master = own.data_ptr<float>();
  view.grad = gradient;
  if (model.working() != DType::F32) {
    const at::Tensor working = staged_.defined() ? staged_ : store_->working_of(unit_);
    view.working =
        static_cast<std::uint16_t*>(working.data_ptr()) + (shard.at - store_->units_[unit_].begin);
    view.working_dtype = model.working();
  }
  for (const ShardState& state : shard.states)
    view.state.push_back(state.kept.wide() ? state.kept.floats() : nullptr);
  view.numel = shard.numel;
  view.decay = shard.setting.decay;
  view.lr_scale = shard.setting.lr_scale;
  view.weight_decay = shard.setting.weight_decay;
  view.facts = &shard.facts;
  view.norms = shard.norms;
  view.device = from_torch(store_->values_[unit_].device);
  view.direction = shard.direction.defined() ? shard.direction.data_ptr<float>() : nullptr;
  return view;
}

void ShardStore::fill(const FillRange& source) {
  for (FlatGroup& group : model_.groups())
    group.weights->begin_write();
  visit(0, units_.size(), Access::Write, [&](const Lease& lease) {
    PackedWeights* const packed = model_.groups()[units_[lease.unit()].group].weights->packed();
    for (const ParamShard& shard : lease.shards()) {
      const std::int64_t end = shard.first + shard.numel;
      const at::Tensor masters = lease.masters(shard);
      if (masters.defined() && masters.is_cpu() && masters.scalar_type() == at::kFloat) {
        fill_held(source, *shard.segment, shard.first, end, masters.data_ptr<float>());
        continue;
      }
      const at::Tensor wide = at::empty({shard.numel}, at::kFloat);
      fill_held(source, *shard.segment, shard.first, end, wide.data_ptr<float>());
      if (packed == nullptr) {
        masters.copy_(wide);
        continue;
      }
      const ParamInfo& info = *shard.segment->info;
      packed->pack(
          static_cast<std::size_t>(shard.segment_index),
          on_device(wide, model_.device()),
          [&](std::int64_t from, std::int64_t to, float* out) { source(info, from, to, out); });
    }
  });
  begin_as_weights([](const std::string&) { return true; });
  publish();
}

void ShardStore::begin_as_weights(const std::function<bool(const std::string&)>& lacks) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    begin_as_weights(u, lacks);
}

void ShardStore::begin_as_weights(std::size_t u,
                                  const std::function<bool(const std::string&)>& lacks) {
  const auto begins = [&](const ParamShard& shard, const ShardState& state) {
    return state.begins_as_weights && lacks(piece_name(state, *shard.segment->info));
  };
  if (!any_state(shards_of(u), begins)) return;
  const Lease lease = acquire(u, Access::Write);
  for (const ParamShard& shard : lease.shards()) {
    for (const ShardState& state : shard.states) {
      if (!begins(shard, state)) continue;
      TESSERA_ASSERT(state.kept.wide());
      state.kept.stored().copy_(lease.masters(shard));
    }
  }
}

void ShardStore::exchange_masters(std::string_view name) {
  for (FlatGroup& group : model_.groups())
    group.weights->begin_write();
  const auto named = [&](const ParamShard&, const ShardState& state) { return state.name == name; };
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!any_state(shards_of(u), named)) continue;
    const Lease lease = acquire(u, Access::Write);
    for (const ParamShard& shard : lease.shards()) {
      for (const ShardState& state : shard.states) {
        if (!named(shard, state)) continue;
        const at::Tensor masters = lease.masters(shard), kept = state.kept.stored();
        if (masters.is_cpu()) {
          auto* const first = masters.data_ptr<float>();
          std::swap_ranges(first, first + shard.numel, state.kept.floats());
          continue;
        }
        const at::Tensor before = masters.clone();
        masters.copy_(kept);
        kept.copy_(before);
      }
    }
  }
  publish();
}

void ShardStore::publish() {
  for (FlatGroup& group : model_.groups())
    group.weights->begin_write();
  for (const auto& [wide, kept] : widened_) {
    if (kept.defined()) kept.take(wide, /*again=*/true);
  }
  widened_.clear();
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    publish_group(g);
    model_.groups()[g].weights->written();
  }
}

void ShardStore::publish_group(std::size_t g) {
  const auto [first, last] = units_of(g);
  if (!values_[first].masters.defined()) return;
  const HeldPart held = hold(g);
  visit(first, last, Access::Read, [&](const Lease& lease) {
    const std::size_t u = lease.unit();
    working_of(u).copy_(masters_of(u));
    if (!options_.local_weights || !model_.groups()[g].trainable) return;
    for (const ParamShard& shard : lease.shards()) {
      const std::int64_t at = shard.at - units_[u].begin;
      working_of(u)
          .narrow(0, at, shard.numel)
          .copy_(lease.masters(shard) + shard.states.front().kept.stored());
    }
  });
}

WidenedShard::WidenedShard(const ShardStore::Lease& lease, ParamShard& shard, const float* gradient)
    : shard_(shard), view_(lease.view(shard, gradient + shard.at)) {
  if (view_.master == nullptr) {
    master_ = lease.masters(shard).to(at::kFloat);
    view_.master = master_.data_ptr<float>();
  }
  for (std::size_t s = 0; s < shard.states.size(); ++s) {
    states_.push_back(shard.states[s].kept.widened());
    view_.state[s] = states_.back().data_ptr<float>();
  }
}

void WidenedShard::write_back() {
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const KeptState& kept = shard_.states[s].kept;
    if (!kept.wide()) kept.take(states_[s]);
  }
}

}  // namespace tessera::parallel
