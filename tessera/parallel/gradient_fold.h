// SPDX-License-Identifier: Apache-2.0
// Gradients of the data-parallel ranks: the fp32 left fold over the global micro-batch index,
// sharded over the ranks.
//
// Micro-batch j = m * n + r (m: accumulation step, n: ranks, r: rank). The owner of a shard keeps
// its accumulator; the gradient of every micro-batch is folded into it in rank order while earlier
// blocks still run their backward:
//   ((g_0 + g_1) + g_2) + ...
// so 1 x 4, 2 x 2 and 4 x 1 ranks x accumulation give the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Memory: 4 bytes a parameter and home for the gradient of a micro-batch (none with one rank and
/// one micro-batch), and 4 / n for the accumulators. Threads: the rank's own.
class GradientFold final : public Policy {
 public:
  /// `max_micros`: most micro-batches a step will have on this rank.
  GradientFold(comm::World& world, ModelInstance& model, int max_micros);
  ~GradientFold() override;

  /// Backward of a block: opens its gradient sinks before, folds them after.
  void before(const Action& action, const BlockRun& run) override;
  void after(const Action& action, const BlockRun& run) override;

  /// Waits for all folds and adds the homes of tied parameters in block order. After it shard() is
  /// the step's gradient.
  void finish();
  /// This rank's part of the group's gradient, [layout.shard_numel()] fp32. Undefined tensor for
  /// frozen groups.
  [[nodiscard]] const at::Tensor& shard(int group) const {
    return slots_[static_cast<std::size_t>(group)].homes.front().accumulator;
  }
  /// The whole gradient of the group on every rank (stage 0): gathered into the buffer of the first
  /// home.
  at::Tensor gather(int group);

  /// Sum of squares of every chunk of every parameter, in one fixed order, on every rank.
  std::vector<double> chunk_sums();
  /// Where the first non-finite gradient came from; after chunk_sums() gave one that is not finite.
  struct Culprit {
    int rank = 0;
    std::string block, tensor;
  };
  std::optional<Culprit> find_nonfinite();

 private:
  struct HomeSlot {
    comm::RegionPtr region;  ///< gradient of one micro-batch, readable by peers; null where the
                             ///< accumulator serves
    at::Tensor transient;
    at::Tensor accumulator;
    comm::WorkPtr work;  ///< the last fold
  };
  struct Slot {
    std::vector<HomeSlot> homes;
  };
  void open(int block, int micro);
  void post(int block, int micro);
  [[nodiscard]] bool direct(int micro) const { return group_.size() == 1 && micro == 0; }

  comm::World& world_;
  ModelInstance& model_;
  const comm::Group& group_;
  std::vector<Slot> slots_;
  comm::RegionPtr sums_region_;
  std::int64_t chunks_per_rank_ = 0;
};

}  // namespace tessera::parallel
