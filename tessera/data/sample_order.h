// SPDX-License-Identifier: Apache-2.0
// The order that samples are read in and how they are cut into batches: a function of (seed,
// epoch), nothing to store.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::data {

/// Position i of epoch e -> sample. A permutation of [0, size) by a Feistel network with cycle
/// walking; the identity without shuffle. O(1), no memory.
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

/// Which samples each step trains on. Batch boundaries never cross an epoch: with drop_last the
/// rest is dropped, else trained at its own size. The state of a run is one number: samples
/// consumed (dropped ones included).
struct GlobalBatch {
  std::int64_t epoch = 0;
  std::int64_t first = 0;            ///< position in the epoch
  std::int64_t size = 0;             ///< samples
  std::int64_t consumed_before = 0;  ///< of the run: number of the first sample
  std::int64_t consumed_after = 0;
};
class BatchPlan {
 public:
  /// `size_at`: batch size of the update that begins after so many samples, where it grows up to
  /// `global_batch`.
  BatchPlan(std::int64_t dataset_size,
            std::int64_t global_batch,
            bool drop_last,
            std::function<std::int64_t(std::int64_t consumed)> size_at = {});
  /// The batch that starts when `consumed` samples of the run are behind us.
  [[nodiscard]] GlobalBatch at(std::int64_t consumed) const;
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< of whole batches
  /// Steps until so many passes over the data are made, once `consumed` samples are behind us.
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
