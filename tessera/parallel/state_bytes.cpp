// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/state_bytes.h"

#include <algorithm>
#include <vector>

#include "tessera/optim/eight_bit.h"
#include "tessera/parallel/early_updates.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/update_strategy.h"
#include "tessera/parallel/update_units.h"

namespace tessera::parallel {
namespace {

// Bytes of the states of a range of a parameter.
struct RangeStates {
  std::int64_t elements = 0;  // of Extent::Elements
  std::int64_t lines = 0;     // of rows and columns
  std::int64_t wide = 0;      // in fp32, of those that are stored in fewer bits
  std::int64_t saved = 0;     // in fp32, of Extent::Elements
};

// `ranks`: states of rows and columns have one owner among them.
RangeStates states_of(const optim::Rule& rule,
                      const Segment& range,
                      DType type,
                      std::int64_t ranks) {
  const optim::ParamFacts facts = facts_of(range);
  RangeStates out;
  std::size_t index = 0;
  for (const optim::StateSpec& state : rule.state(facts)) {
    const optim::KeptIn kept_in = optim::kept_in(rule, facts, index++);
    const std::int64_t count = state_numel(state, facts, range.numel);
    if (state.extent != optim::Extent::Elements) {
      out.lines += count * static_cast<std::int64_t>(size_of(state.dtype)) / ranks;
      continue;
    }
    out.elements += kept_bytes(kept_in, type, count);
    if (type != DType::F32 || kept_in != optim::KeptIn::Type) out.wide += 4 * count;
    out.saved += 4 * count;
  }
  return out;
}

// The units of a buffer that rest on a disk.
struct Resting {
  std::int64_t bytes = 0;
  std::int64_t on_disk = 0;  // in whole blocks
  // In fp32: all, and states in fewer bits, which a save widens as it reads them.
  std::int64_t saved = 0, wide = 0;
  std::int64_t units = 0, largest = 0;
};

// As ShardStore cuts them.
Resting resting_of(const PlannedBuffer& buffer,
                   const Layout& layout,
                   const optim::Rule& rule,
                   bool masters) {
  Resting out;
  if (!layout.offload || !buffer.group.trainable) return out;
  const StateOffload& offload = *layout.offload;
  const OwnedRange& owned = buffer.owned;
  std::vector<UnitParam> params;
  for (const Segment& segment : buffer.layout.segments()) {
    const Segment range = owned.of(segment);
    const bool whole = rule.scope(facts_of(segment)) == optim::Scope::WholeTensor;
    if (range.numel > 0) params.push_back({range.begin - owned.begin, range.numel, whole});
  }
  for (const Unit& unit : cut_units(0, owned.numel, params, offload.unit_elements)) {
    if (!StatePlace::rests(unit, owned.numel, offload.share)) continue;
    std::int64_t bytes = masters ? 4 * unit.numel : 0;
    out.saved += bytes;
    const std::int64_t begin = owned.begin + unit.begin;
    for (const Segment& segment : buffer.layout.segments()) {
      const Segment range = segment.within(begin, begin + unit.numel);
      if (range.numel == 0) continue;
      const RangeStates states = states_of(rule, range, layout.kept.states, /*ranks=*/1);
      bytes += states.elements;
      out.saved += states.saved;
      out.wide += states.wide;
    }
    if (bytes == 0) continue;
    const std::int64_t blocks = layout.disk.in_blocks(bytes);
    out.bytes += bytes;
    out.on_disk += blocks;
    out.largest = std::max(out.largest, blocks);
    ++out.units;
  }
  return out;
}

}  // namespace

StateBytes state_bytes(const PlannedStage& stage,
                       const Layout& layout,
                       const optim::Rule& rule,
                       bool frozen_in_saves,
                       const std::function<bool(const PlannedBuffer&)>& apart) {
  const bool separate =
      has_separate_masters(layout.working, layout.kept.masters, /*local_weights=*/false);
  StateBytes out;
  Resting on_disk;
  std::int64_t widest = 0, elements = 0;
  bool narrow_states = false;
  for (const PlannedBuffer& buffer : stage.buffers) {
    // A frozen parameter has only its working weights, which a save widens if it contains them.
    const bool trained = buffer.group.trainable,
               masters = trained && (separate || (apart && apart(buffer)));
    if (!masters && (trained || frozen_in_saves)) {
      const std::int64_t wide = 4 * buffer.owned.numel;
      if (buffer.group.residency == Residency::Resting) {
        out.saved_from_disk += wide;
      } else if (layout.working != DType::F32) {
        out.widened_by_saves += wide;
      }
    }
    if (!trained) continue;
    const int shards = layout.zero_stage >= 1 ? buffer.ranks.fold : 1;
    std::int64_t of_buffer = 0, wide = 0;
    for (const Segment& segment : buffer.layout.segments()) {
      const RangeStates states =
          states_of(rule, buffer.owned.of(segment), layout.kept.states, shards);
      out.memory += states.elements + states.lines;
      elements += states.elements;
      wide += states.wide;
      of_buffer = std::max(of_buffer, segment.numel);
    }
    const Resting resting = resting_of(buffer, layout, rule, masters);
    out.memory += (masters ? 4 * buffer.owned.numel : 0) - resting.bytes;
    out.disk += resting.on_disk;
    on_disk.units += resting.units;
    on_disk.largest = std::max(on_disk.largest, resting.largest);
    out.saved_from_disk += resting.saved;
    out.widened_by_saves += wide - resting.wide;
    narrow_states = narrow_states || wide > 0;
    widest = std::max(widest, std::min(of_buffer, buffer.owned.numel));
  }
  if (layout.offload)
    out.memory += std::min<std::int64_t>(layout.offload->buffers, on_disk.units) * on_disk.largest;
  // Values kept in 16 bits are updated in fp32, one parameter after the other.
  if (layout.kept.masters != DType::F32) out.memory += 4 * widest;
  if (narrow_states) out.memory += 8 * widest;
  out.memory += update_bytes(stage, rule);
  if (layout.early_updates) out.memory += early_update_bytes(stage, layout.working, elements);
  return out;
}

std::int64_t saved_state_bytes(const optim::Rule& rule, const ParamInfo& info) {
  const optim::ParamFacts facts = facts_of(info);
  std::int64_t bytes = 0;
  for (const optim::StateSpec& state : rule.state(facts)) {
    const std::int64_t count = state_numel(state, facts, info.numel() / info.num_matrices());
    const DType type = state.extent == optim::Extent::Elements ? DType::F32 : state.dtype;
    bytes += count * static_cast<std::int64_t>(size_of(type)) * info.num_matrices();
  }
  return bytes;
}

bool keeps_lines(const optim::Rule& rule, const ParamInfo& info) {
  return std::ranges::any_of(rule.state(facts_of(info)), [](const optim::StateSpec& state) {
    return state.extent != optim::Extent::Elements;
  });
}

}  // namespace tessera::parallel
