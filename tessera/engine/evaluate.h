// SPDX-License-Identifier: Apache-2.0
// Held-out loss: the same windows in the same batches, whatever the layout.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/parallel/executor.h"
#include "tessera/tasks/metrics.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {

struct EvalReport {
  double loss = 0.0;        ///< mean of the objective's first term, in nats a token
  std::int64_t tokens = 0;  ///< what that term is divided by
  Metrics metrics = {};     ///< all terms of the loss, and those of the task
  /// What the model said of every sample, in their order, and what is true; of tasks with metrics.
  tasks::Predictions predictions = {};
};

/// What a caller does around the rounds of an evaluation, in which every data-parallel rank
/// computes at most one batch.
struct EvalRounds {
  std::function<void()> before = {}, after = {};
};

/// Mean loss and terms over the first `samples` samples in batches of `micro_batch`. Collective:
/// batch i is computed by rank i mod n and reduced in i, so neither its shape nor the order of sums
/// knows the layout. `task`: also computes its metrics of all predictions, which every rank then
/// has. Error{Data} where they have no token to predict.
EvalReport evaluate(parallel::Executor& executor,
                    comm::World& world,
                    const data::Dataset& dataset,
                    std::int64_t samples,
                    std::int64_t micro_batch,
                    const EvalRounds& rounds = {},
                    const tasks::Task* task = nullptr);

}  // namespace tessera::engine
