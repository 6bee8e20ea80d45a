// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/planned_buffers.h"

#include <algorithm>
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

}  // namespace

GroupSizes sizes_of(const mesh::Mesh& mesh, const GroupAxes& axes) {
  return {.fold = mesh.size(axes.fold),
          .inner = mesh.size(axes.inner),
          .copies = mesh.size(axes.copies),
          .slices = mesh.size(axes.sources)};
}

PlannedStage plan_stage(const nn::Model& model,
                        const Layout& layout,
                        const ParameterRules& rules,
                        int stage) {
  WeightOptions weights = layout.weight_options(rules);
  // A single rank needs no gathers, whatever the stage.
  if (layout.shard_ranks == 1 && weights.residency == Residency::Sharded)
    weights.residency = Residency::Whole;
  const std::vector<int> blocks =
      blocks_of(layout.stages, stage, static_cast<int>(model.blocks.size()));
  const mesh::Mesh mesh = layout.mesh();
  PlannedStage out;
  out.blocks = static_cast<int>(blocks.size());
  out.zero_stage = layout.zero_stage;
  out.working = layout.working;
  out.parts_in_memory = weights.tier_buffers;
  FlatPlan plan = plan_flat_groups(placed_blocks(model, layout, rules, weights.experts), weights);
  for (FlatGroupPlan& group : plan.groups) {
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
        {std::move(group), std::move(flat), strategy, ranks, owned, std::move(here), on_disk});
  }
  return out;
}

}  // namespace tessera::parallel
