// SPDX-License-Identifier: Apache-2.0
// Predictions for samples that several ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/executor.h"
#include "tessera/tasks/metrics.h"

namespace tessera::engine {

/// The outputs of batches, each computed by one rank. Used by one thread.
class PredictionsOfBatches {
 public:
  explicit PredictionsOfBatches(std::size_t batches) : batches_(batches) {}
  /// Adds the logits of a batch, and its labels if there are any: a row per sample, or per token
  /// that has a label. If `outcome` has no logits, another stage has them.
  void add(std::size_t batch, const nn::Outcome& outcome, const nn::Batch& samples);
  /// Returns all outputs in the order of the batches, on every rank. Collective over `group`, of
  /// which one rank has added each batch.
  tasks::Predictions gather(comm::World& world, const comm::Group& group) const;

 private:
  std::vector<tasks::Predictions> batches_;
};

/// Calls sink(sample, prediction) for the samples [first, dataset.size()) in order, on every rank.
/// A tensor "labels" of the dataset marks with values >= 0 the tokens for which rows are wanted.
/// Collective: rank i mod n computes batch i of `micro_batch` samples. Throws Error{Unsupported} if
/// ranks share the tokens of a sample.
void predict(parallel::Executor& executor,
             comm::World& world,
             const data::Dataset& dataset,
             std::int64_t first,
             std::int64_t micro_batch,
             const std::function<void(std::int64_t sample, const tasks::Predictions& rows)>& sink);

}  // namespace tessera::engine
