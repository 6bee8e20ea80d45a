// SPDX-License-Identifier: Apache-2.0
// How much memory the passes of a model need, found by running its blocks on meta tensors: the
// executor of a training step runs as it does in training, and every allocation is counted.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {

/// What a pass through one block does to the memory of a rank, in bytes, without weights and their
/// gradients.
struct PassBytes {
  std::int64_t change = 0;  ///< after the pass, less before
  std::int64_t peak = 0;    ///< during the pass, less before
  bool operator==(const PassBytes&) const = default;
};

/// The passes of one block, as it runs in training.
struct BlockBytes {
  std::int64_t flow = 0;      ///< of the tensors that it begins with
  std::int64_t gradient = 0;  ///< of the gradients that it hands back
  std::map<ActionKind, PassBytes> passes;
};

/// A model and the layout of the rank that is asked about: rank 0, which has the largest parts.
struct ProbedModel {
  nn::Model model;
  mesh::Mesh mesh = mesh::Mesh::data_parallel(1);  ///< of one stage and one data-parallel rank
  WeightOptions weights;
  /// Meta tensors, with this rank's tokens where ranks share them.
  nn::Batch batch;
  int threads = 1;  ///< of the kernels of a rank
};

/// Runs the model's blocks on meta tensors and returns what each needs, one entry a block.
/// `recompute`: blocks keep only their input and run again in backward; `regions`: named regions do
/// (selective). `split`: the backward of inputs and that of weights are passes of their own.
/// Of more than three like neighbours (of one class, with like parameters) the first three are run,
/// as long as the second and the third agree. Starts no thread. Cost: about 3 ms for each block
/// that is run. Errors are those of the blocks: Error{Shape} names a block whose operations have no
/// meta kernel or look at values.
std::vector<BlockBytes> probe_training(const ProbedModel& probed,
                                       bool recompute,
                                       bool regions,
                                       bool split);
/// The most that a pass through all blocks without gradients needs (evaluation).
std::int64_t probe_inference(const ProbedModel& probed);

/// The most that a stage needs at any moment of `actions`. `blocks`: what each block of the model
/// needs in this run. `batch`: bytes of one micro-batch, which is held from its Load to its last
/// action. Pure.
std::int64_t most_activations(std::span<const Action> actions,
                              const StageLayout& layout,
                              int stage,
                              std::span<const BlockBytes> blocks,
                              std::int64_t batch);

}  // namespace tessera::parallel
