// SPDX-License-Identifier: Apache-2.0
// The order in which samples are read and their division into batches: a function of (seed, epoch)
// without stored state.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::data {

/// Maps position i of epoch e to a sample. A permutation of [0, size) by a Feistel network with
/// cycle walking; the identity without shuffle. O(1), no memory.
class SampleOrder {
 public:
  SampleOrder(std::int64_t size, bool shuffle, std::uint64_t seed)
      : size_(size), shuffle_(shuffle), seed_(seed) {}
  [[nodiscard]] std::int64_t operator()(std::int64_t epoch, std::int64_t position) const;

 private:
  std::int64_t size_;
  bool shuffle_;
  std::uint64_t seed_;
};

/// The samples of each step. Batches never cross an epoch: with drop_last the remainder is dropped,
/// else it is a smaller batch. The state of a run is one number: samples consumed (including
/// dropped ones).
struct GlobalBatch {
  std::int64_t epoch = 0;
  std::int64_t first = 0;            ///< position in the epoch
  std::int64_t size = 0;             ///< number of samples
  std::int64_t consumed_before = 0;  ///< number of the batch's first sample within the run
  std::int64_t consumed_after = 0;
};
class BatchPlan {
 public:
  /// `size_at`: the batch size of an update, as a function of the samples consumed before it, if
  /// the batch grows up to `global_batch`.
  BatchPlan(std::int64_t dataset_size,
            std::int64_t global_batch,
            bool drop_last,
            std::function<std::int64_t(std::int64_t consumed)> size_at = {});
  /// The batch that starts after `consumed` samples of the run.
  [[nodiscard]] GlobalBatch at(std::int64_t consumed) const;
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< counts whole batches
  /// Number of steps until the given number of passes over the data, from `consumed` samples on.
  [[nodiscard]] double steps_in(double epochs, std::int64_t consumed = 0) const;

 private:
  [[nodiscard]] std::int64_t batch_at(std::int64_t consumed) const {
    return size_at_ ? size_at_(consumed) : batch_;
  }
  std::int64_t size_, batch_;
  bool drop_last_;
  std::function<std::int64_t(std::int64_t)> size_at_;
};

}  // namespace tessera::data
