// SPDX-License-Identifier: Apache-2.0
// The pieces of a checkpoint that a ShardStore holds.
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/weight_tiles.h"
#include "tessera/parallel/widened_state.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

std::span<std::byte> bytes_at(float* data, std::int64_t numel) {
  return {reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(numel) * sizeof(float)};
}

/// The piece of elements `range` of a shard's parameter, without bytes.
checkpoint::PieceBytes piece_of(std::string name, const Segment& range, const ParamShard& shard) {
  const ParamInfo& info = *shard.segment->info;
  std::int64_t first = range.begin - shard.segment->begin;
  mesh::Box box = shard.segment->box();
  if (is_tile(info)) {
    // Tiles are rows of the parameter, so that the pieces of neighbours can be joined.
    first += box.begin.front() * (info.numel() / info.shape.front());
    box = mesh::whole(info.shape);
  }
  return {.name = std::move(name),
          .dtype = DType::F32,
          .shape = info.shape,
          .piece = {std::move(box), first, first + range.numel}};
}

/// The place of `range` in the shard.
std::int64_t offset_in(const ParamShard& shard, const Segment& range) {
  return range.begin - shard.segment->begin - shard.first;
}

}  // namespace

/// The fp32 memory of the host that represents `kept` in the pieces: the values' own memory if it
/// is fp32 and on the host. Values of a device arrive by the end of add_pieces().
float* ShardStore::widen(const KeptState& kept) {
  if (kept.wide() && kept.stored().is_cpu()) return kept.floats();
  at::Tensor wide = kept.widened();
  if (!wide.is_cpu()) {
    const at::Tensor there =
        std::exchange(wide, landing_room(wide.numel(), at::kFloat, wide.device()));
    wide.copy_(there, /*non_blocking=*/true);
  }
  widened_.emplace_back(std::move(wide), kept);
  return widened_.back().first.data_ptr<float>();
}

void ShardStore::add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (for_save && !model_.groups()[g].counted) continue;  // another stage saves it
    if (options_.trained_alone && !model_.groups()[g].trainable) continue;
    TESSERA_ASSERT(model_.groups()[g].weights->packed() == nullptr);
    const auto [first, last] = units_of(g);
    RestingBytes resting;
    for (std::size_t u = first; u < last; ++u) {
      add_unit_pieces(u, for_save, out);
      if (!for_save) continue;
      if (units_[u].travels && !resting.units) resting.units = buffers_->snapshot(first);
      if (masters_rest(u) && !resting.weights)
        resting.weights = weights_of(u).resting()->snapshot();
      if (units_[u].travels || masters_rest(u)) add_sources(u, resting, out);
    }
  }
  wait_for_device(model_.device());
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
  const std::int64_t begin = shard.segment->begin + shard.first;
  const Segment range = mine.of(*shard.segment).within(begin, begin + shard.numel);
  if (range.numel == 0) return std::nullopt;
  return range;
}

/// Adds the values of a unit that are in working memory.
void ShardStore::add_unit_pieces(std::size_t u,
                                 bool for_save,
                                 std::vector<checkpoint::PieceBytes>& out) {
  const Unit& unit = units_[u];
  float* masters = nullptr;
  for (ParamShard& shard : shards_of(u)) {
    const auto range = piece_range(unit.group, shard, for_save);
    if (!range) continue;
    const ParamInfo& info = *shard.segment->info;
    const std::int64_t offset = offset_in(shard, *range);
    if (values_[u].masters.defined() ? !unit.travels : !masters_rest(u)) {
      if (masters == nullptr) masters = widen(KeptState::over(masters_of(u)));
      out.push_back(piece_of(info.name, *range, shard));
      out.back().bytes = bytes_at(masters + (shard.at - unit.begin) + offset, range->numel);
    }
    for (const ShardState& state : shard.states) {
      if (unit.travels || !(for_save ? state.in_saves : state.in_loads)) continue;
      out.push_back(piece_of(piece_name(state, info), *range, shard));
      out.back().bytes = bytes_at(widen(state.kept) + offset, range->numel);
    }
  }
}

/// Adds the values of a unit that rest in a tier to the pieces of a save.
void ShardStore::add_sources(std::size_t u,
                             const RestingBytes& resting,
                             std::vector<checkpoint::PieceBytes>& out) {
  std::vector<std::int64_t> places;
  each_value(u, [&](KeptState&, std::int64_t at) { places.push_back(at); });
  auto place = places.begin();
  const auto source = [&](std::int64_t at, std::int64_t element, std::int64_t numel) {
    const std::int64_t begin = buffers_->unit_begin(u) + at + 4 * element;
    return std::make_shared<const ByteRange>(
        resting.units, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(4 * numel));
  };
  const auto value = static_cast<std::int64_t>(size_of(model_.working()));
  const auto weights = [&](std::int64_t element, std::int64_t numel) {
    return widened(std::make_shared<const ByteRange>(resting.weights,
                                                     static_cast<std::uint64_t>(value * element),
                                                     static_cast<std::uint64_t>(value * numel)),
                   model_.working());
  };
  const bool has_masters = values_[u].masters.defined();
  const std::int64_t masters = has_masters ? *place++ : 0;
  for (ParamShard& shard : shards_of(u)) {
    const auto range = piece_range(units_[u].group, shard, /*for_save=*/true);
    const std::int64_t offset = range ? offset_in(shard, *range) : 0;
    if (range && has_masters) {
      out.push_back(piece_of(shard.segment->info->name, *range, shard));
      out.back().source = source(masters, shard.at - units_[u].begin + offset, range->numel);
    } else if (range && resting.weights) {
      out.push_back(piece_of(shard.segment->info->name, *range, shard));
      out.back().source = weights(shard.at + offset, range->numel);
    }
    if (!units_[u].travels) continue;
    for (std::size_t s = 0; s < shard.states.size(); ++s) {
      const ShardState& state = shard.states[s];
      const std::int64_t at = *place++;
      if (!range || !state.in_saves) continue;
      out.push_back(piece_of(piece_name(state, *shard.segment->info), *range, shard));
      out.back().source =
          widened_state(std::make_shared<const ByteRange>(
                            resting.units,
                            static_cast<std::uint64_t>(buffers_->unit_begin(u) + at),
                            static_cast<std::uint64_t>(state.kept.bytes())),
                        optim::kept_in(rule_, shard.facts, s),
                        options_.kept.states,
                        shard.numel,
                        offset,
                        range->numel);
    }
  }
}

void ShardStore::load_resting(
    const std::function<void(std::vector<checkpoint::PieceBytes>&)>& load) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const bool travels = units_[u].travels,
               masters_travel = values_[u].masters.defined() && travels;
    if (!travels && !masters_rest(u)) continue;
    if (options_.trained_alone && !model_.groups()[units_[u].group].trainable) continue;
    const Lease lease = acquire(u, Access::Write);
    std::vector<checkpoint::PieceBytes> pieces;
    std::vector<std::pair<at::Tensor, KeptState>> wide;
    const auto add_wide = [&](std::string name,
                              const Segment& range,
                              const ParamShard& shard,
                              const KeptState& kept) {
      wide.emplace_back(kept.widened(), kept);
      pieces.push_back(piece_of(std::move(name), range, shard));
      pieces.back().bytes = bytes_at(wide.back().first.data_ptr<float>(), range.numel);
    };
    for (ParamShard& shard : lease.shards()) {
      const auto range = piece_range(units_[u].group, shard, /*for_save=*/false);
      if (!range) continue;
      const ParamInfo& info = *shard.segment->info;
      if (masters_travel || masters_rest(u))
        add_wide(info.name, *range, shard, KeptState::over(lease.masters(shard)));
      for (const ShardState& state : shard.states) {
        if (travels && state.in_loads) add_wide(piece_name(state, info), *range, shard, state.kept);
      }
    }
    load(pieces);
    for (const auto& [values, kept] : wide)
      kept.take(values, /*again=*/true);
  }
}

void ShardStore::visit_trained(const std::function<at::Tensor(std::size_t)>& gradient_of,
                               const TrainedVisitor& take) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    if (!group.trainable) continue;
    const at::Tensor gradient = gradient_of(g);
    if (!group.counted) continue;  // another stage counts it
    const auto [first, last] = units_of(g);
    visit(first, last, Access::Read, [&](const Lease& lease) {
      for (const ParamShard& shard : lease.shards()) {
        const auto range = piece_range(g, shard, /*for_save=*/true);
        if (!range) continue;
        const std::int64_t offset = offset_in(shard, *range);
        const auto part = [&](const at::Tensor& all, std::int64_t at) {
          return all.narrow(0, at, range->numel).to(at::kFloat).to(at::kCPU);
        };
        take(*shard.segment->info,
             part(lease.masters(shard), offset),
             gradient.defined() ? part(gradient, shard.at + offset) : gradient);
      }
    });
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

}  // namespace tessera::parallel
