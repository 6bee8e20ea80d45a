// SPDX-License-Identifier: Apache-2.0
// Measures what each block of a model costs on this machine, and cuts pipeline stages by it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

struct BlockCost {
  double seconds = 0;      ///< forward and backward of a micro-batch
  std::int64_t bytes = 0;  ///< that its forward keeps for the backward
};

/// Runs every block alone on the output of the block before it, in the working type, and takes the
/// fastest of three runs. `seed` is that of the weights and of dropout. Holds the weights of one
/// block at a time. Cost: three passes through the model. Errors name the block. `after_each` is
/// called after each run of a block.
std::vector<BlockCost> measure_blocks(
    const nn::Model& model,
    DType working,
    std::uint64_t seed,
    const nn::Batch& batch,
    const std::function<void()>& after_each = [] {});

/// The bounds of the plan's parts whose slowest is as fast as it can be, among those that fit into
/// 95 % of `available` bytes of this host; `costs` has one entry a block. Empty where none fits.
std::vector<int> bounds_by_cost(const planner::Plan& plan,
                                const std::vector<BlockCost>& costs,
                                std::uint64_t available);

/// Where the plan's partition is "profile": the first rank measures the blocks, and all ranks take
/// the bounds that this gives. Collective. Error{Memory} where no stages fit.
void place_measured_blocks(planner::Plan& plan,
                           comm::World& world,
                           const data::Dataset& data,
                           std::uint64_t available);

}  // namespace tessera::engine
