// SPDX-License-Identifier: Apache-2.0
// Measures the cost of each block of a model on this machine, and partitions pipeline stages by it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

struct BlockCost {
  double seconds = 0;      ///< forward and backward of one micro-batch
  std::int64_t bytes = 0;  ///< what the forward keeps for the backward
};

/// Runs every block alone on the output of the previous one, in the working dtype, and returns the
/// fastest of three runs. `seed` is used for weights and dropout. Holds the weights of one block at
/// a time. Cost: three passes through the model. Errors name the block. `after_each` is called
/// after each run of a block.
std::vector<BlockCost> measure_blocks(
    const nn::Model& model,
    DType working,
    std::uint64_t seed,
    const nn::Batch& batch,
    const std::function<void()>& after_each = [] {});

/// The bounds that minimize the time of the slowest part, among those that fit into 95 % of
/// `available` bytes of this host; `costs` has one entry per block. `need`: the estimate of the
/// plan. Empty if none fits.
std::vector<int> bounds_by_cost(const planner::Plan& plan,
                                const planner::MemoryEstimate& need,
                                const std::vector<BlockCost>& costs,
                                std::uint64_t available);

/// Returns the plan with the bounds of its stages by the cost of the blocks, which the first rank
/// measures, if its partition is "profile"; else the plan itself. `need`: the estimate of the plan.
/// Collective. Throws Error{Memory} if no partition fits.
planner::PlanWithData with_measured_stages(const planner::PlanWithData& plan,
                                           const planner::MemoryEstimate& need,
                                           comm::World& world,
                                           const data::Dataset& data,
                                           std::uint64_t available);

}  // namespace tessera::engine
