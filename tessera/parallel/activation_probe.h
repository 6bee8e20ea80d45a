// SPDX-License-Identifier: Apache-2.0
// Measures the memory and the work of the passes of a model by running its blocks on meta tensors.
// The executor runs as in training, and every allocation, operation and message is counted.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "tessera/comm/cost.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/block.h"
#include "tessera/ops/op_log.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {

/// The change in a rank's memory by a pass through one block, in bytes, without weights and their
/// gradients.
struct PassBytes {
  std::int64_t change = 0;  ///< bytes after the pass minus bytes before it
  std::int64_t peak = 0;    ///< highest bytes during the pass minus bytes before it
  bool operator==(const PassBytes&) const = default;
};

/// The passes of one block in training.
struct BlockBytes {
  std::int64_t flow = 0;      ///< bytes of the block's input flow
  std::int64_t gradient = 0;  ///< bytes of the gradients that it returns
  /// Bytes of the input flow that rest in an ActivationStore between forward and backward, and the
  /// bytes of each tensor of this rank there.
  std::int64_t rested = 0;
  std::vector<std::int64_t> stored;
  std::map<ActionKind, PassBytes> passes;
};

/// The work of a pass of one block, and the messages that its layers exchange with other ranks: the
/// collectives of tensor and context parallelism. Reductions of gradients and gathers of weights
/// are not part of a pass.
struct PassWork {
  std::vector<ops::OpRow> operations;  ///< their measured times mean nothing
  std::vector<comm::Posted> posted;
};
/// The passes of one block in training.
using BlockWork = std::map<ActionKind, PassWork>;

/// A model and the layout of the probed rank: rank 0, which has the largest parts.
struct ProbedModel {
  nn::Model model;
  mesh::Mesh mesh =
      mesh::Mesh::data_parallel(1);  ///< mesh of one stage and the ranks that a pass needs
  WeightOptions weights;
  /// Meta tensors; if ranks share the tokens, this rank's tokens.
  nn::Batch batch;
  int threads = 1;  ///< kernel threads of a rank
  /// Inputs of recomputed blocks rest on a disk; tensor-parallel ranks divide them.
  bool offloads = false, partitions = false;
  c10::Device device = c10::DeviceType::CPU;  ///< the device whose kernels the rank will use
};

/// Runs the model's blocks on meta tensors and returns one entry per block. `recompute`: blocks
/// keep only their input and run again in backward; `regions`: named regions do (selective
/// recompute). `split`: the backward of inputs and the backward of weights are separate passes. Of
/// more than three consecutive similar blocks (same class, similar parameters), only the first
/// three run, provided that the second and the third agree. Starts no thread. Cost: about 3 ms for
/// each block that runs. Errors are those of the blocks: Error{Shape} names a block whose
/// operations have no meta kernel or read values.
std::vector<BlockBytes> probe_training(const ProbedModel& probed,
                                       bool recompute,
                                       bool regions,
                                       bool split);
/// The work of the passes that probe_training() measures, one entry per block, by the same rules.
std::vector<BlockWork> probe_work(const ProbedModel& probed,
                                  bool recompute,
                                  bool regions,
                                  bool split);
/// The peak memory of a pass through all blocks without gradients (evaluation), in bytes.
std::int64_t probe_inference(const ProbedModel& probed);
/// The names of the terms that an evaluation of the batch computes, in the order of the blocks.
std::vector<std::string> probe_terms(const ProbedModel& probed);

/// The peak memory of a stage over all `actions`, in bytes. `blocks`: the measurements of each
/// block of the model in this run. `batch`: bytes of one micro-batch, which is held from its Load
/// to its last action. `sums`: bytes that stay from the first pass of each block of the stage that
/// makes gradients on; empty: none. Pure.
std::int64_t most_activations(std::span<const Action> actions,
                              const StageLayout& layout,
                              int stage,
                              std::span<const BlockBytes> blocks,
                              std::int64_t batch,
                              std::span<const std::int64_t> sums = {});

/// The tensors of a stage that rest in an ActivationStore.
struct StoredActivations {
  std::int64_t most = 0;     ///< tensors at a time
  std::int64_t largest = 0;  ///< bytes of the largest one
  std::int64_t tensors = 0;  ///< in a step, each written and read once
};
/// Counts them over all `actions`. Pure.
StoredActivations stored_activations(std::span<const Action> actions,
                                     const StageLayout& layout,
                                     int stage,
                                     std::span<const BlockBytes> blocks);

}  // namespace tessera::parallel
