// SPDX-License-Identifier: Apache-2.0
// How a training is divided over ranks: the numbers that may differ between two runs with the same
// mathematics, and what follows from them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "tessera/base/dtype.h"
#include "tessera/config/json.h"
#include "tessera/mesh/expert_fold.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/parameter_rules.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_layout.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/tensor_mode.h"

namespace tessera::parallel {

/// A value: two layouts can be compared, and a copy with other numbers is another layout. What
/// follows from the numbers is computed by the functions and never stored.
struct Layout {
  // ---- the groups of ranks ----
  StageLayout stages;             ///< which blocks are on which stage of the pipeline
  json::Value partition;          ///< parallel.pipeline.partition, from which their bounds follow
  std::string schedule = "1f1b";  ///< its name in pipeline_schedules(), if there are several stages
  bool scatter_gather = false;
  TensorLayout tensor = TensorLayout::OneD;
  TensorOptions::Grid grid;  ///< the ranks that share a layer
  bool sequence = false;     ///< they share the tokens between layers too
  int context = 1;           ///< number of ranks that share the tokens of every sample
  nn::ContextMode context_mode = nn::ContextMode::Ring;
  int data_ranks = 1;
  /// Number of data-parallel ranks that together hold all working weights in stage 3: all, or a
  /// group.
  int shard_ranks = 1;
  /// Number of these among which the experts of a layer are divided: ranks along Axis::Ep.
  int expert_ranks = 1;
  bool experts_over_context = false;  ///< also among the ranks that share the tokens of a sample
  bool experts_over_tensor = false;   ///< also among the ranks that share a layer
  bool splits_experts = false;        ///< the ranks that share a layer split each of its experts
  int threads = 1;                    ///< per rank
  // ---- a step ----
  std::int64_t micro_batch = 0, accumulation = 0;
  Recompute recompute;
  std::optional<ActivationOffload> activation_offload;  ///< of recomputed blocks
  /// If they are in the host's memory, of ranks on a device: activations_on_host().
  std::optional<int> host_activations;
  bool partition_activations = false;  ///< see divides_activations()
  // ---- what a rank keeps ----
  int zero_stage = 0;
  DType working = DType::F32;
  KeptTypes kept;  ///< dtypes of masters and moments
  std::optional<StateOffload> offload;
  std::optional<WeightOffload> weight_offload;
  bool states_on_host = false;    ///< of ranks on a device: StatePlace::on_host
  bool streamed_updates = false;  ///< with offload: StatePlace::streamed
  bool early_updates = false;     ///< with states_on_host: StatePlace::early_updates
  /// True if ranks are on a device, and weights that are not on a disk in the memory of its host
  /// (Residency::OnHost).
  bool weights_on_host = false;
  memory::TierOptions disk;  ///< of all that rests on a disk, without the folder
  std::int64_t persistence_threshold = 0;
  std::int64_t persistent = std::numeric_limits<std::int64_t>::max();
  // ---- what ranks send ----
  GatherOptions gather;
  GatherForm trained_gather = GatherForm::Values, frozen_gather = GatherForm::Values;
  Reduction reduction = Reduction::Each;
  DType sums = DType::F32;  ///< dtype in which gradients are accumulated
  DType sent = DType::F32;  ///< dtype in which they are sent; U8 stands for codes
  std::optional<FeedbackOptions> feedback;
  std::int64_t bucket = std::numeric_limits<std::int64_t>::max();
  bool sparse_rows = false;

  /// The mesh of the ranks, and their number.
  [[nodiscard]] mesh::Mesh mesh() const;
  [[nodiscard]] int ranks() const;
  [[nodiscard]] PipelineSchedule pipeline_schedule() const;
  /// True if the ranks measure the blocks before they divide them: the partition is "profile".
  [[nodiscard]] bool measures_blocks() const;
  [[nodiscard]] nn::TensorMode tensor_mode() const { return mode_of(tensor); }
  /// See ParallelOptions::token_unit().
  [[nodiscard]] std::int64_t token_unit() const;
  /// True if a forward pass of one data-parallel rank needs the others: they gather weights for
  /// each other, or hold each other's experts.
  [[nodiscard]] bool runs_together() const { return zero_stage == 3 || expert_ranks > 1; }
  /// How the working weights are distributed, except for packed ones.
  [[nodiscard]] Residency residency() const;
  /// True if masters, states or weights rest on a disk.
  [[nodiscard]] bool rests_on_disk() const { return offload || weight_offload; }
  [[nodiscard]] bool uses_disk() const { return rests_on_disk() || activation_offload; }
  /// True if inputs of recomputed blocks rest outside of the memory of the computation.
  [[nodiscard]] bool moves_activations() const { return activation_offload || host_activations; }
  /// True if tensor-parallel ranks keep parts of the inputs of recomputed blocks, which they have
  /// alike. The ranks of a grid, and those that share tokens, have parts already.
  [[nodiscard]] bool divides_activations() const {
    return partition_activations && grid.size() > 1 && tensor == TensorLayout::OneD && !sequence;
  }
  /// True if weights are gathered for their use.
  [[nodiscard]] bool gathers_weights() const { return gathers(residency()); }
  /// The axes over which experts are divided and split.
  [[nodiscard]] mesh::ExpertFold expert_fold() const;
  [[nodiscard]] ReductionOptions reduction_options() const;
  [[nodiscard]] WeightOptions weight_options(const ParameterRules& rules) const;
  bool operator==(const Layout&) const = default;
};

}  // namespace tessera::parallel
