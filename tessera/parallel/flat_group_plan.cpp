// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/flat_group_plan.h"

#include <map>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::parallel {

std::string_view weight_strategy(Residency residency, GatherForm form, int ranks) {
  if (residency == Residency::Packed) return "packed";
  if (residency == Residency::Resting) return "resting";
  if (residency == Residency::OnHost) return "on_host";
  if (residency == Residency::Replicated || ranks == 1) return "replicated";
  if (residency == Residency::Whole) return "whole";
  return form == GatherForm::Int8 ? "sharded_codes" : "sharded";
}

FlatPlan plan_flat_groups(const std::vector<BlockParams>& blocks, const WeightOptions& options) {
  FlatPlan out;
  std::map<std::string, int> by_name;
  std::int64_t persistent = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockParams& block = blocks[b];
    for (std::size_t p = 0; p < block.params.size(); ++p) {
      const ParamInfo& info = *block.params[p];
      const bool tile = is_tile(info);
      const std::string own_key =
          tile ? fmt::format("{} (rows from {})", info.name, info.box.begin.front()) : info.name;
      const bool known = info.tied && by_name.contains(own_key);
      const bool sharded = gathers(options.residency);
      Residency residency = options.residency;
      const bool packed = options.packed && !info.tied && options.packed(info.name);
      if (packed) {
        TESSERA_ASSERT(!info.trainable);
        residency = Residency::Packed;
      } else if (sharded && !known && info.room_numel() < options.persistence_threshold &&
                 persistent + info.room_numel() <= options.persistent) {
        residency = Residency::Whole;
        persistent += info.room_numel();
      }
      // A tied parameter has its own buffer, because its uses are in different blocks.
      const bool alone =
          tile || info.tied || (options.tables_apart && info.role == Role::TokenTable && !packed);
      const int set = options.apart ? options.apart(info.name) : 0;
      // The buffers of a set that is frozen for a while do not depend on whether it is.
      const bool frozen = set == 0 && !info.trainable;
      const bool experts = info.stacked();
      std::string key = alone ? own_key : block.name + (frozen ? " (frozen)" : "");
      if (experts && !alone) key += " (experts)";
      if (!alone && set > 0) key += fmt::format(" (set {})", set);
      if (!alone && sharded && residency == Residency::Whole) key += " (persistent)";
      if (packed) key += " (packed)";
      const auto [it, fresh] = by_name.emplace(key, static_cast<int>(out.groups.size()));
      if (fresh) {
        const GroupAxes axes = experts ? expert_axes(options.experts) : dense_axes();
        out.groups.push_back({key, info.trainable, residency, axes, {}, {}, tile});
      }
      FlatGroupPlan& group = out.groups[static_cast<std::size_t>(it->second)];
      const auto index = static_cast<int>(b);
      if (group.uses.empty() || group.uses.back().block != index) group.uses.push_back({index, {}});
      group.uses.back().params.push_back(p);
      if (group.uses.size() == 1) {
        out.order.emplace_back(it->second, static_cast<int>(group.params.size()));
        group.params.push_back(block.params[p]);
      } else {
        TESSERA_REQUIRE(
            group.params.front()->shape == info.shape,
            Bug,
            fmt::format("the blocks that share {} declare it with different shapes", info.name),
            "");
      }
    }
  }
  std::int64_t in_memory = 0;
  for (FlatGroupPlan& group : out.groups) {
    if (group.residency != Residency::Resting || group.tile) continue;
    std::int64_t numel = 0;
    for (const auto& info : group.params)
      numel += info->room_numel();
    if (in_memory + numel > options.in_memory) break;
    in_memory += numel;
    group.residency = options.in_memory_on_host ? Residency::OnHost : Residency::Sharded;
  }
  return out;
}

OwnedRange owned_range(const FlatLayout& layout, int stage, int index) {
  if (stage == 0) return {0, layout.numel()};
  return {layout.shard_begin(index), layout.shard_numel()};
}

bool has_separate_masters(DType working, DType masters, bool local_weights) {
  return masters == DType::F32 && (working != DType::F32 || local_weights);
}

std::int64_t state_numel(const optim::StateSpec& state,
                         const optim::ParamFacts& facts,
                         std::int64_t numel) {
  switch (state.extent) {
    case optim::Extent::Elements:
      return numel;
    case optim::Extent::Rows:
      return facts.rows;
    case optim::Extent::Columns:
      return facts.columns;
  }
  return 0;
}

}  // namespace tessera::parallel
