// SPDX-License-Identifier: Apache-2.0
// Gathers a block's weights before it runs, the next ones while it runs, and gives back what is not
// needed soon. Source: DeepSpeed's parameter coordinator (ZeRO stage 3).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// All in elements.
struct GatherOptions {
  /// Gathered ahead of their use at most; 0: nothing is. Unset: the next block.
  std::optional<std::int64_t> prefetch;
  std::int64_t max_live = 1'000'000'000;  ///< gathered at any time at most, but for one block
  std::int64_t max_reuse_distance = 0;    ///< weights used again within so many stay; 0: those that
                                          ///< the very next run of a block uses
};

/// The order of block runs is known from the list of actions, so there is nothing to record and it
/// is the same on every rank. Whole weights are only waited for. Threads: the rank's own.
///
/// A gather is posted before the run ahead of its use and waited for behind that run. Where ranks
/// copy for themselves (shm, threads) that hides the difference between ranks and no copy.
class WeightGather final : public Policy {
 public:
  WeightGather(ModelInstance& model, GatherOptions options) : model_(model), options_(options) {}

  void begin(std::span<const Action> actions) override;
  void before(const Action& action, const BlockRun& run) override;
  void after(const Action& action, const BlockRun& run) override;
  void end() override;

  /// Elements of sharded weights that are gathered now, and the most there were.
  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] std::int64_t most_live() const { return most_live_; }

 private:
  void post(WorkingWeights& weights, std::int64_t numel);
  void prefetch();
  [[nodiscard]] bool needed_soon(int group) const;
  [[nodiscard]] WorkingWeights& weights(int group) const {
    return model_.groups()[static_cast<std::size_t>(group)].weights;
  }
  [[nodiscard]] std::int64_t numel(int group) const {
    return model_.groups()[static_cast<std::size_t>(group)].layout.numel();
  }

  ModelInstance& model_;
  GatherOptions options_;
  std::vector<int> trace_;  ///< block of every run to come
  std::size_t at_ = 0;      ///< the run that is under way
  std::int64_t live_ = 0, most_live_ = 0;
};

}  // namespace tessera::parallel
