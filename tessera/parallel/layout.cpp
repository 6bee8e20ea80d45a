// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/layout.h"

#include "tessera/base/error.h"

namespace tessera::parallel {

nn::TensorMode mode_of(TensorLayout layout) {
  switch (layout) {
    case TensorLayout::OneD:
      return nn::TensorMode::OneD;
    case TensorLayout::TwoD:
    case TensorLayout::TwoAndAHalfD:
      return nn::TensorMode::TwoD;
    case TensorLayout::ThreeD:
      return nn::TensorMode::ThreeD;
  }
  TESSERA_ASSERT(false);
}

int Layout::ranks() const {
  return static_cast<int>(stages.stages * grid.size() * context * data_ranks);
}

PipelineSchedule Layout::pipeline_schedule() const {
  return pipeline_schedules().get(schedule);
}

bool Layout::measures_blocks() const {
  return stages.stages > 1 && partition.is_string() && partition.as_string() == "profile";
}

std::int64_t Layout::token_unit() const {
  ParallelOptions options;
  options.tensor.size = grid.size();
  options.sequence = sequence;
  options.context = {.size = context, .mode = context_mode};
  return options.token_unit();
}

mesh::Mesh Layout::mesh() const {
  const bool groups = zero_stage == 3 && shard_ranks > 1 && shard_ranks < data_ranks;
  const int shard = groups ? shard_ranks : data_ranks;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  return mesh::Mesh({.pp = stages.stages,
                     .dp_rep = data_ranks / shard,
                     .dp_shard = shard / expert_ranks,
                     .ep = expert_ranks,
                     .cp = context,
                     .tp_depth = of(grid.depth),
                     .tp_row = of(grid.row),
                     .tp_col = of(grid.col)});
}

Residency Layout::residency() const {
  const bool whole = shard_ranks == 1 && data_ranks > 1;
  if (zero_stage == 0) return Residency::Replicated;
  if (zero_stage != 3 || whole) return Residency::Whole;
  if (weight_offload) return Residency::Resting;
  return weights_on_host ? Residency::OnHost : Residency::Sharded;
}

mesh::ExpertFold Layout::expert_fold() const {
  using mesh::Axis;
  using mesh::AxisSet;
  mesh::ExpertFold out;
  if (expert_ranks > 1) out.ep = out.ep | AxisSet{Axis::Ep};
  if (experts_over_context) out.ep = out.ep | AxisSet{Axis::Cp};
  if (experts_over_tensor) out.ep = out.ep | AxisSet::tp();
  if (splits_experts) out.etp = AxisSet::tp();
  return out;
}

ReductionOptions Layout::reduction_options() const {
  return {.stage = zero_stage,
          .mode = reduction,
          .accumulate = sums,
          .comm_dtype = sent,
          .feedback = feedback,
          .bucket = bucket,
          .sparse_rows = sparse_rows,
          .max_micros = static_cast<int>(accumulation)};
}

WeightOptions Layout::weight_options(const ParameterRules& rules) const {
  return {.working = working,
          .residency = residency(),
          .persistence_threshold = persistence_threshold,
          .persistent = persistent,
          .in_memory = weight_offload ? weight_offload->in_memory : 0,
          .in_memory_on_host = weights_on_host,
          .tier_buffers = weight_offload ? weight_offload->buffers : 1,
          .tensor = tensor_mode(),
          .sequence = sequence,
          .context = context_mode,
          .experts = expert_fold(),
          .tables_apart = sparse_rows,
          .frozen = rules.frozen,
          .apart = rules.apart,
          .packed = rules.packed,
          .packing = rules.packing,
          .tiles = rules.tiles,
          .trained_gather = trained_gather,
          .frozen_gather = frozen_gather};
}

}  // namespace tessera::parallel
