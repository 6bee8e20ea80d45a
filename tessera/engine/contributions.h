// SPDX-License-Identifier: Apache-2.0
// The contributions of single samples to the gradient of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/engine/train_state.h"
#include "tessera/nn/block.h"

namespace tessera::engine {

/// The gradient g of a step is the sum of the gradients g_i of its samples, each of which is
/// divided by the denominators of the whole step.
struct Contribution {
  double norm = 0.0;  ///< |g_i|
  /// <g_i, g> / <g, g>, the part of the gradient's squared norm that is due to the sample: negative
  /// if the sample alone would move the weights against the step. The shares of all samples add up
  /// to 1, less that of terms that belong to no sample. 0 if the gradient is 0.
  double share = 0.0;
};

/// Computes the contributions of samples 0 to `samples` - 1 of a step; the result is the same on
/// every rank. `load` returns micro-batches of the whole step as TrainState::step() takes them, and
/// `load_samples` returns samples [first, end), which may be none. Norms are those before clipping.
/// Collective.
std::vector<Contribution> contributions_to(
    TrainState& state,
    comm::World& world,
    int num_micros,
    const TrainState::LoadMicro& load,
    std::int64_t samples,
    const std::function<nn::Batch(std::int64_t first, std::int64_t end)>& load_samples);

}  // namespace tessera::engine
