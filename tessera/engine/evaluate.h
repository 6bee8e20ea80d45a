// SPDX-License-Identifier: Apache-2.0
// Held-out loss: the same windows in the same batches, in every layout.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/tasks/metrics.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {

struct EvalReport {
  /// The value that training minimizes: the weighted sum of the means of the objective's terms, in
  /// nats per token.
  double loss = 0.0;
  std::int64_t tokens = 0;  ///< denominator of the objective's first term
  Metrics metrics = {};     ///< all terms of the loss, and the task's metrics
  /// The model's prediction for every sample, in order, and the labels; only for tasks with
  /// metrics.
  tasks::Predictions predictions = {};
  std::int64_t samples = 0, of_samples = 0;  ///< those that were read, and those of the dataset
};

/// The part of its dataset that an evaluation read: " of the first 80 of 1,000 samples"; empty: all
/// of it.
std::string part_text(const EvalReport& report);

/// The unit that EvalReport::tokens counts, and over which the loss is a mean: "tokens" that the
/// model predicts; "labels", if it predicts classes, one for the whole sample or one for each
/// token; "pairs" of texts that it compares, or "completions" that were labelled.
std::string counted_by(const data::Dataset& dataset, const models::ObjectiveChoice& objective);

/// Callbacks around the rounds of an evaluation; in each round every data-parallel rank computes at
/// most one batch.
struct EvalRounds {
  std::function<void()> before = {}, after = {};
  std::int64_t step = 0;  ///< number of updates made before
};

/// Mean loss and terms over the first `samples` samples in batches of `micro_batch`. Collective.
/// Rank i mod n computes batch i, and batches are reduced in order, so neither the batches' shapes
/// nor the order of sums depends on the layout. `task`: also computes its metrics from all
/// predictions, on every rank. Throws Error{Data} if the samples have no token to predict.
EvalReport evaluate(parallel::Executor& executor,
                    comm::World& world,
                    const data::Dataset& dataset,
                    std::int64_t samples,
                    std::int64_t micro_batch,
                    const EvalRounds& rounds = {},
                    const tasks::Task* task = nullptr);

}  // namespace tessera::engine
