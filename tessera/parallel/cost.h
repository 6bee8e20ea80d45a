// SPDX-License-Identifier: Apache-2.0
// The cost of a step's parts, next to the code that runs them: passes of blocks, reductions of
// gradients, gathers of weights, and the update. All functions are pure. docs/adding/cost.md shows
// how they become the time of a step.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/dtype.h"
#include "tessera/base/machine.h"
#include "tessera/comm/cost.h"
#include "tessera/parallel/activation_probe.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/parallel/reduction_options.h"

namespace tessera::parallel {

/// The cost of one pass of one block on one rank.
struct PassCost {
  double seconds = 0;
  double flops = 0, bytes = 0;  ///< of its operations
  comm::Sent sent;              ///< by its layers
  PassCost& operator+=(const PassCost& other);
};
PassCost cost(const PassWork& work, const Machine& machine);
/// The seconds of consecutive blocks as one chunk, for simulate().
PassTimes pass_times(std::span<const BlockWork> blocks, const Machine& machine);

/// The messages that a rank sends in a step to reduce the gradients of a flat buffer of `numel`
/// elements over the ranks at `fold`, with `micros` micro-batches on each rank.
comm::Sent reduction_cost(const ReductionOptions& options,
                          std::int64_t numel,
                          int micros,
                          comm::GroupPlace fold);

/// How often a step gathers the weights of a block. `sharded`: they are sharded in stage 3 and
/// released after each use, except that the last block's stay between forward and backward, and the
/// first one's between micro-batches. Other weights are gathered once, after the update.
int gathers_of(bool sharded, int block, int num_blocks, int micros);
/// The messages that a rank sends for `gathers` gathers of a flat buffer. In stage 0 every rank
/// gathers the sums of the gradients in `sums` and computes all weights itself; from stage 1 on it
/// gathers `working` weights.
comm::Sent gather_cost(
    int stage, std::int64_t numel, DType working, DType sums, int gathers, comm::GroupPlace shards);

/// Seconds in which a rank updates `numel` elements with a fused rule that keeps `states` fp32
/// numbers for each: master weights and states are read and written, gradients read, and weights
/// written in `working` unless that is fp32.
double update_seconds(std::int64_t numel, int states, DType working, const Machine& machine);

}  // namespace tessera::parallel
