// SPDX-License-Identifier: Apache-2.0
// Gathers a block's weights before it runs and the next ones while it runs, and releases those not
// needed soon.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/parallel/action.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Follows GatherOrder; packed weights are handled like sharded ones. Whole weights are only waited
/// for; tiles are gathered by the layers, and this takes part in the gathers of other ranks. It is
/// therefore the first of the executor's policies. Used only on the rank's own thread.
///
/// A gather is posted before the block run that precedes its use and waited for after that run. If
/// ranks do the copies themselves (shm, threads), this hides the skew between ranks but not the
/// copy.
class WeightGather final : public Policy {
 public:
  /// `model` must outlive this.
  WeightGather(ModelInstance& model, GatherOptions options);

  void begin(std::span<const Action> actions) override;
  void before(const Action& action, const BlockRun& run) override;
  void after(const Action& action, const BlockRun& run) override;
  void end() override;

  /// Number of elements of sharded weights that are gathered now, and the highest number so far.
  [[nodiscard]] std::int64_t live() const { return order_.live(); }
  [[nodiscard]] std::int64_t most_live() const { return order_.most_live(); }

 private:
  void fetch();
  void post(const std::vector<int>& sharded);
  void release(const std::vector<int>& sharded);
  [[nodiscard]] WorkingWeights& weights(int group) const {
    return *model_.groups()[static_cast<std::size_t>(group)].weights;
  }

  ModelInstance& model_;
  std::vector<int> sharded_;  ///< indices of the model's groups that the order counts
  GatherOrder order_;
};

}  // namespace tessera::parallel
