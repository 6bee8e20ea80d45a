// SPDX-License-Identifier: Apache-2.0
// The flat buffers of a stage before there are ranks: what every part of a training needs to say
// how many bytes it will allocate for them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/parallel/parameter_rules.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

struct Layout;

/// The numbers of ranks in the groups of a buffer; see GroupRanks.
struct GroupSizes {
  int fold = 1, inner = 1, copies = 1, slices = 1;
  /// See GroupRanks::inputs().
  [[nodiscard]] int inputs() const { return fold * slices; }
};
GroupSizes sizes_of(const mesh::Mesh& mesh, const GroupAxes& axes);

/// A flat buffer as it will be on the rank of its fold whose shards have the most elements.
struct PlannedBuffer {
  FlatGroupPlan group;
  FlatLayout layout;
  std::string_view strategy;  ///< of its weights; see FlatGroupPlan
  GroupSizes ranks;
  OwnedRange owned;         ///< the part that the rank updates
  std::vector<int> blocks;  ///< the blocks of the stage that use it, counted from its first block
  /// Bytes of the rank's part of the weights, in whole blocks, if it rests on a disk; else 0.
  std::int64_t on_disk = 0;
  [[nodiscard]] int uses() const { return static_cast<int>(blocks.size()); }
};

struct PlannedStage {
  std::vector<PlannedBuffer> buffers;
  int blocks = 0;      ///< number of blocks on the stage
  int zero_stage = 0;  ///< see Layout
  DType working = DType::F32;
  int parts_in_memory = 0;  ///< of those that rest on a disk: WeightOptions::tier_buffers
};
/// Returns the buffers of a stage of the pipeline. Pure. Cost: every block of the model is made
/// once, without memory for its parameters.
PlannedStage plan_stage(const nn::Model& model,
                        const Layout& layout,
                        const ParameterRules& rules,
                        int stage);
/// The same for all stages, at little more than the cost of one.
std::vector<PlannedStage> plan_stages(const nn::Model& model,
                                      const Layout& layout,
                                      const ParameterRules& rules);

}  // namespace tessera::parallel
