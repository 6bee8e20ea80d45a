// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/shard_store.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

std::span<std::byte> bytes_of(float* data, std::int64_t numel) {
  return {reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(numel) * sizeof(float)};
}

std::string piece_name(const ShardState& state, const ParamInfo& info) {
  return fmt::format("optimizer.{}.{}", state.name, info.name);
}

}  // namespace

ShardStore::ShardStore(comm::World& world,
                       ModelInstance& model,
                       const optim::Rule& rule,
                       Options options)
    : world_(world),
      model_(model),
      rule_(rule),
      options_(std::move(options)),
      device_(device_of(world)) {
  TESSERA_ASSERT(options_.kept.masters == DType::F32 || options_.kept.masters == model_.working());
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  slots_.resize(model_.groups().size());
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    Slot& slot = slots_[g];
    // Every rank packs all of the weights that it unpacks later.
    const bool packed = group.weights->packed() != nullptr;
    slot.range = owned_range(group.layout, packed ? 0 : options_.stage, group.ranks.fold->index);
    TESSERA_ASSERT(packed || group.weights->own().numel() == slot.range.numel);
    make_masters(g);
    make_shards(g);
  }
}

void ShardStore::make_masters(std::size_t g) {
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  slot.master_storage.reset();
  slot.master = nullptr;
  // A frozen parameter has only its working value.
  if (group.trainable &&
      has_separate_masters(model_.working(), options_.kept.masters, options_.local_weights)) {
    slot.master_storage = at::zeros({slot.range.numel}, at::device(device_).dtype(at::kFloat));
    slot.master = slot.master_storage.data_ptr<float>();
  } else if (model_.working() == DType::F32 && group.weights->packed() == nullptr) {
    slot.master = group.weights->own().data_ptr<float>();
  }
}

void ShardStore::follow_model(std::size_t g, std::int64_t updates) {
  TESSERA_ASSERT(!options_.local_weights && !options_.make_state);
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  slot.shards.clear();
  make_masters(g);
  if (slot.master_storage.defined()) slot.master_storage.copy_(group.weights->own());
  make_shards(g);
  for (const FlatParam& param : group.layout.params()) {
    const std::string& name = param.info->name;
    if (group.trainable && !rule_.state(facts_of(*param.info)).empty()) {
      beginnings_.begin(name, updates);
    } else {
      beginnings_.forget(name);
    }
  }
  begin_as_weights(slot, [](const std::string&) { return true; });
}

void ShardStore::make_shards(std::size_t g) {
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  for (std::size_t s = 0; s < group.layout.segments().size(); ++s) {
    const Segment& segment = group.layout.segments()[s];
    const Segment range = slot.range.of(segment);
    if (range.numel == 0) continue;
    ParamShard shard;
    shard.segment = &segment;
    shard.group = static_cast<int>(g);
    shard.segment_index = static_cast<int>(s);
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
}

ShardState ShardStore::make_state(const ParamShard& shard, const optim::StateSpec& spec) const {
  if (options_.make_state) return options_.make_state(shard, shard.states.size(), spec.name);
  const optim::KeptIn kept_in = optim::kept_in(rule_, shard.facts, shard.states.size());
  return {spec.name, KeptState::zeros(kept_in, options_.kept.states, shard.numel, device_)};
}

ParamShard* ShardStore::find(int group, int segment) {
  for (ParamShard& shard : shards(static_cast<std::size_t>(group))) {
    if (shard.segment_index == segment) return &shard;
  }
  return nullptr;
}

at::Tensor ShardStore::working_of(const ParamShard& shard) const {
  const FlatGroup& group = model_.groups()[static_cast<std::size_t>(shard.group)];
  return group.weights->own().narrow(0, shard.at, shard.numel);
}

optim::ShardView ShardStore::view(ParamShard& shard, const float* gradient) {
  const auto g = static_cast<std::size_t>(shard.group);
  optim::ShardView view;
  if (slots_[g].master != nullptr) view.master = slots_[g].master + shard.at;
  view.grad = gradient;
  if (model_.working() != DType::F32) {
    view.working =
        static_cast<std::uint16_t*>(model_.groups()[g].weights->own().data_ptr()) + shard.at;
    view.working_dtype = model_.working();
  }
  for (const ShardState& state : shard.states) {
    view.state.push_back(state.kept.wide() ? state.kept.values.data_ptr<float>() : nullptr);
  }
  view.numel = shard.numel;
  view.decay = shard.setting.decay;
  view.lr_scale = shard.setting.lr_scale;
  view.weight_decay = shard.setting.weight_decay;
  view.facts = &shard.facts;
  view.norms = shard.norms;
  view.device = from_torch(device_);
  view.direction = shard.direction.defined() ? shard.direction.data_ptr<float>() : nullptr;
  return view;
}

void ShardStore::fill(const FillRange& source) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    PackedWeights* const packed = model_.groups()[g].weights->packed();
    model_.groups()[g].weights->begin_write();
    for (const ParamShard& shard : slots_[g].shards) {
      const ParamInfo& info = *shard.segment->info;
      const std::int64_t end = shard.first + shard.numel;
      if (slots_[g].master != nullptr && device_.is_cpu()) {
        fill_held(source, *shard.segment, shard.first, end, slots_[g].master + shard.at);
        continue;
      }
      const at::Tensor wide = at::empty({shard.numel}, at::kFloat);
      fill_held(source, *shard.segment, shard.first, end, wide.data_ptr<float>());
      const at::Tensor& masters = slots_[g].master_storage;
      if (packed != nullptr) {
        packed->pack(
            static_cast<std::size_t>(shard.segment_index),
            wide,
            [&](std::int64_t from, std::int64_t to, float* out) { source(info, from, to, out); });
      } else {
        (masters.defined() ? masters.narrow(0, shard.at, shard.numel) : working_of(shard))
            .copy_(wide);
      }
    }
  }
  begin_as_weights([](const std::string&) { return true; });
  publish();
}

void ShardStore::begin_as_weights(const std::function<bool(const std::string&)>& lacks) {
  for (const Slot& slot : slots_)
    begin_as_weights(slot, lacks);
}

void ShardStore::begin_as_weights(const Slot& slot,
                                  const std::function<bool(const std::string&)>& lacks) {
  for (const ParamShard& shard : slot.shards) {
    for (const ShardState& state : shard.states) {
      if (!state.begins_as_weights || !lacks(piece_name(state, *shard.segment->info))) continue;
      TESSERA_ASSERT(slot.master != nullptr && state.kept.wide());
      const float* const from = slot.master + shard.at;
      std::copy(from, from + shard.numel, state.kept.values.data_ptr<float>());
    }
  }
}

void ShardStore::exchange_masters(std::string_view name) {
  for (FlatGroup& group : model_.groups())
    group.weights->begin_write();
  for (Slot& slot : slots_) {
    for (ParamShard& shard : slot.shards) {
      for (const ShardState& state : shard.states) {
        if (state.name != name) continue;
        TESSERA_ASSERT(slot.master != nullptr && state.kept.wide());
        float* const masters = slot.master + shard.at;
        std::swap_ranges(masters, masters + shard.numel, state.kept.values.data_ptr<float>());
      }
    }
  }
  publish();
}

void ShardStore::publish() {
  for (FlatGroup& group : model_.groups())
    group.weights->begin_write();
  for (const auto& [wide, kept] : widened_)
    kept.take(wide, /*again=*/true);
  widened_.clear();
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    publish_group(g);
    model_.groups()[g].weights->written();
  }
}

void ShardStore::publish_group(std::size_t g) {
  const at::Tensor& own = model_.groups()[g].weights->own();
  if (slots_[g].master_storage.defined()) own.copy_(slots_[g].master_storage);
  if (!options_.local_weights || !model_.groups()[g].trainable) return;
  for (const ParamShard& shard : slots_[g].shards) {
    const at::Tensor master = slots_[g].master_storage.narrow(0, shard.at, shard.numel);
    working_of(shard).copy_(master + shard.states.front().kept.values);
  }
}

/// The fp32 memory of the host that represents `kept` in the pieces: the state's own memory if it
/// is fp32 and on the host.
float* ShardStore::widen(const KeptState& kept) {
  if (kept.wide() && kept.values.is_cpu()) return kept.values.data_ptr<float>();
  widened_.emplace_back(kept.widened().to(at::kCPU), kept);
  return widened_.back().first.data_ptr<float>();
}

void ShardStore::add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (for_save && !model_.groups()[g].counted) continue;  // another stage saves it
    if (options_.trained_alone && !model_.groups()[g].trainable) continue;
    TESSERA_ASSERT(model_.groups()[g].weights->packed() == nullptr);
    Slot& slot = slots_[g];
    float* masters = nullptr;
    for (ParamShard& shard : slot.shards) {
      const auto range = piece_range(g, shard, for_save);
      if (!range) continue;
      if (masters == nullptr) {
        masters =
            widen({.values = slot.master_storage.defined() ? slot.master_storage
                                                           : model_.groups()[g].weights->own()});
      }
      add_shard_pieces(*range, shard, masters, for_save, out);
    }
  }
}

std::optional<Segment> ShardStore::piece_range(std::size_t g,
                                               const ParamShard& shard,
                                               bool for_save) const {
  const FlatGroup& group = model_.groups()[g];
  if (for_save && !writes(world_.mesh(), world_.rank(), group.axes, shard.segment->info->spec))
    return std::nullopt;
  // A replicated state is still written once: every rank writes its shard of it.
  const OwnedRange mine =
      for_save ? owned_range(group.layout, /*stage=*/1, group.ranks.fold->index) : slots_[g].range;
  const Segment range = mine.of(*shard.segment);
  if (range.numel == 0) return std::nullopt;
  return range;
}

void ShardStore::visit_trained(const std::function<at::Tensor(std::size_t)>& gradient_of,
                               const TrainedVisitor& visit) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    if (!group.trainable) continue;
    const at::Tensor gradient = gradient_of(g);
    if (!group.counted) continue;  // another stage counts it
    const at::Tensor& masters =
        slots_[g].master_storage.defined() ? slots_[g].master_storage : group.weights->own();
    for (const ParamShard& shard : slots_[g].shards) {
      const auto range = piece_range(g, shard, /*for_save=*/true);
      if (!range) continue;
      const std::int64_t at = shard.at + range->begin - shard.segment->begin - shard.first;
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, at, range->numel).to(at::kFloat).to(at::kCPU);
      };
      visit(*shard.segment->info, part(masters), gradient.defined() ? part(gradient) : gradient);
    }
  }
}

void ShardStore::add_shard_pieces(const Segment& range,
                                  ParamShard& shard,
                                  float* masters,
                                  bool for_save,
                                  std::vector<checkpoint::PieceBytes>& out) {
  const ParamInfo& info = *shard.segment->info;
  const std::int64_t first = range.begin - shard.segment->begin, numel = range.numel;
  const std::int64_t offset = first - shard.first;
  const mesh::Piece piece{shard.segment->box(), first, first + numel};
  out.push_back(
      {info.name, DType::F32, info.shape, piece, bytes_of(masters + shard.at + offset, numel)});
  for (const ShardState& state : shard.states) {
    if (!(for_save ? state.in_saves : state.in_loads)) continue;
    out.push_back({piece_name(state, info),
                   DType::F32,
                   info.shape,
                   piece,
                   bytes_of(widen(state.kept) + offset, numel)});
  }
}

void ShardStore::add_beginnings(std::vector<checkpoint::PieceBytes>& out) {
  using mesh::AxisSet;
  if (!world_.mesh().is_first(world_.rank(), AxisSet::all() - AxisSet{mesh::Axis::Pp})) return;
  beginnings_.add_pieces(model_, out);
}

void ShardStore::load_beginnings(const checkpoint::Checkpoint& checkpoint) {
  if (options_.counts_from_beginnings) beginnings_.load(model_, rule_, checkpoint);
}

WidenedShard::WidenedShard(ShardStore& store, ParamShard& shard, const float* gradient)
    : shard_(shard), view_(store.view(shard, gradient + shard.at)) {
  if (view_.master == nullptr) {
    master_ = store.working_of(shard).to(at::kFloat);
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
