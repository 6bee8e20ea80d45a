// SPDX-License-Identifier: Apache-2.0
// What a model says of samples that several ranks share.
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

/// The outputs of batches, each computed by one rank. Threads: one.
class PredictionsOfBatches {
 public:
  explicit PredictionsOfBatches(std::size_t batches) : batches_(batches) {}
  /// The logits of a batch, and its labels where it has some: a row for each sample, or for each of
  /// its tokens that has a label. Where `outcome` has no logits another stage has them.
  void add(std::size_t batch, const nn::Outcome& outcome, const nn::Batch& samples);
  /// All of them in the order of the batches, on every rank. Collective over `group`, of which one
  /// rank has added each batch.
  tasks::Predictions gather(comm::World& world, const comm::Group& group) const;

 private:
  std::vector<tasks::Predictions> batches_;
};

/// Calls sink(sample, what the model says of it) for the samples [first, dataset.size()) in their
/// order, on every rank. A tensor "labels" of the dataset marks the tokens that rows are wanted of,
/// by 0 or more. Collective: batch i of `micro_batch` samples is computed by rank i mod n.
/// Error{Unsupported} where ranks share the tokens of a sample.
void predict(parallel::Executor& executor,
             comm::World& world,
             const data::Dataset& dataset,
             std::int64_t first,
             std::int64_t micro_batch,
             const std::function<void(std::int64_t sample, const tasks::Predictions& rows)>& sink);

}  // namespace tessera::engine
