// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/planned_buffers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/layout.h"

namespace tessera::parallel {
namespace {

// The blocks of the model with their parameters as the first rank holds them.
std::vector<BlockParams> placed_blocks(const nn::Model& model,
                                       const Layout& layout,
                                       const ParameterRules& rules,
                                       const mesh::ExpertFold& fold) {
  const mesh::Mesh mesh = layout.mesh();
  const bool shares_layers = mesh.size(mesh::AxisSet::tp()) > 1,
             shares_experts = mesh.size(fold.ep | fold.etp) > 1;
  std::unique_ptr<comm::World> world;
  nn::TensorParallel tensor;
  nn::ExpertParallel experts;
  if (shares_layers || shares_experts) world = comm::shape_world(mesh, /*rank=*/0);
  if (shares_layers)
    tensor = {world.get(), &world->group(mesh::AxisSet::tp()), layout.tensor_mode()};
  if (shares_experts) experts = {world.get(), &world->group(fold.ep), fold};
  std::vector<BlockParams> out;
  for (const nn::BlockSpec& spec : model.blocks) {
    BlockParams block{spec.name, {}};
    for (const auto& declared : nn::declared_by(spec)) {
      Param param(declared);
      if (rules.frozen && rules.frozen(declared->name)) param.freeze();
      nn::place(param, shares_layers ? &tensor : nullptr, shares_experts ? &experts : nullptr);
      block.params.push_back(param.shared_info());
    }
    block.params = in_tiles(block.params, rules.tiles);
    out.push_back(std::move(block));
  }
  return out;
}

// The blocks of the model on a stage.
std::vector<int> blocks_of(const StageLayout& stages, int stage, int count) {
  std::vector<int> out;
  for (int chunk = 0; chunk < stages.chunks; ++chunk) {
    const auto [first, last] = stages.blocks(stage, chunk, count);
    for (int b = first; b < last; ++b)
      out.push_back(b);
  }
  return out;
}

// The places of ranks among `ranks` that are compared: gaps between parameters follow each other in
// the same way everywhere, and padding is at the end.
std::vector<int> compared(int ranks) {
  constexpr int kAll = 8;
  std::vector<int> out;
  if (ranks <= kAll) {
    for (int rank = 0; rank < ranks; ++rank)
      out.push_back(rank);
    return out;
  }
  for (int i = 0; i < kAll; ++i)
    out.push_back(static_cast<int>(std::int64_t{i} * (ranks - 1) / (kAll - 1)));
  return out;
}

// Elements of parameters in a range of a buffer.
std::int64_t elements_in(const PlannedBuffer& buffer, const OwnedRange& range) {
  std::int64_t out = 0;
  for (const Segment& segment : buffer.layout.segments())
    out += range.of(segment).numel;
  return out;
}

// Sets the ranges that the rank with the most elements owns, in all buffers with the same ranks.
void own_most(std::vector<PlannedBuffer>& buffers) {
  std::map<std::uint16_t, std::vector<PlannedBuffer*>> by_fold;
  for (PlannedBuffer& buffer : buffers)
    by_fold[buffer.group.axes.fold.bits()].push_back(&buffer);
  for (const auto& [fold, of_fold] : by_fold) {
    std::int64_t most = -1;
    int best = 0;
    for (const int index : compared(of_fold.front()->ranks.fold)) {
      std::int64_t elements = 0;
      for (const PlannedBuffer* const buffer : of_fold) {
        if (buffer->group.trainable)
          elements += elements_in(*buffer, owned_range(buffer->layout, /*stage=*/1, index));
      }
      if (elements > most) {
        most = elements;
        best = index;
      }
    }
    for (PlannedBuffer* const buffer : of_fold)
      buffer->owned = owned_range(buffer->layout, /*stage=*/1, best);
  }
}

}  // namespace

GroupSizes sizes_of(const mesh::Mesh& mesh, const GroupAxes& axes) {
  return {.fold = mesh.size(axes.fold),
          .inner = mesh.size(axes.inner),
          .copies = mesh.size(axes.copies),
          .slices = mesh.size(axes.sources)};
}

namespace {

WeightOptions weights_of(const Layout& layout, const ParameterRules& rules) {
  WeightOptions out = layout.weight_options(rules);
  // A single rank needs no gathers, whatever the stage.
  if (layout.shard_ranks == 1 && out.residency == Residency::Sharded)
    out.residency = Residency::Whole;
  return out;
}

// The buffers of `plan`, which is that of the whole model, that the stage has.
PlannedStage stage_of(const FlatPlan& plan,
                      const Layout& layout,
                      const WeightOptions& weights,
                      int stage,
                      int count) {
  const std::vector<int> blocks = blocks_of(layout.stages, stage, count);
  const mesh::Mesh mesh = layout.mesh();
  PlannedStage out;
  out.blocks = static_cast<int>(blocks.size());
  out.zero_stage = layout.zero_stage;
  out.working = layout.working;
  out.parts_in_memory = weights.tier_buffers;
  for (const FlatGroupPlan& group : plan.groups) {
    std::vector<int> here;
    for (const FlatGroupPlan::BlockUse& use : group.uses) {
      const auto at = std::ranges::find(blocks, use.block);
      if (at != blocks.end()) here.push_back(static_cast<int>(at - blocks.begin()));
    }
    if (here.empty()) continue;
    const GroupSizes ranks = sizes_of(mesh, group.axes);
    FlatLayout flat = group.layout(ranks.fold);
    const OwnedRange owned = owned_range(flat, std::min(layout.zero_stage, 1), /*index=*/0);
    const std::string_view strategy = group.strategy(weights, ranks.fold);
    std::int64_t on_disk = 0;
    if (group.residency == Residency::Resting) {
      on_disk = layout.disk.in_blocks(flat.shard_numel() *
                                      static_cast<std::int64_t>(size_of(layout.working)));
    }
    out.buffers.push_back(
        {group, std::move(flat), strategy, ranks, owned, std::move(here), on_disk});
  }
  if (layout.zero_stage > 0) own_most(out.buffers);
  return out;
}

}  // namespace

PlannedStage plan_stage(const nn::Model& model,
                        const Layout& layout,
                        const ParameterRules& rules,
                        int stage) {
  const WeightOptions weights = weights_of(layout, rules);
  const FlatPlan plan =
      plan_flat_groups(placed_blocks(model, layout, rules, weights.experts), weights);
  return stage_of(plan, layout, weights, stage, static_cast<int>(model.blocks.size()));
}

std::vector<PlannedStage> plan_stages(const nn::Model& model,
                                      const Layout& layout,
                                      const ParameterRules& rules) {
  const WeightOptions weights = weights_of(layout, rules);
  const FlatPlan plan =
      plan_flat_groups(placed_blocks(model, layout, rules, weights.experts), weights);
  std::vector<PlannedStage> out;
  for (int stage = 0; stage < layout.stages.stages; ++stage)
    out.push_back(stage_of(plan, layout, weights, stage, static_cast<int>(model.blocks.size())));
  return out;
}

}  // namespace tessera::parallel
