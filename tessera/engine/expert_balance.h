// SPDX-License-Identifier: Apache-2.0
// The part of a step that concerns experts: common denominators of the terms that balance them, the
// loads of all layers, and corrections of routers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::engine {

/// The load of one sparse layer over the global batch of a step.
struct LayerLoad {
  int block = 0;
  std::vector<std::int64_t> chosen_E;  ///< choices of each expert, including dropped ones
  std::int64_t dropped = 0;
};

/// Used only by TrainState, on the rank's own thread.
class ExpertBalance {
 public:
  /// Whether the whole model has experts, on any stage.
  static bool has_experts(const nn::Model& model);
  ExpertBalance(comm::World& world, parallel::ModelInstance& model)
      : world_(world), model_(model) {}

  /// Counts a micro-batch of the step.
  void count(const nn::Batch& batch);
  /// This rank's part of nn::common_denominators() of the step, such that the sum over all ranks is
  /// that of the global batch; resets the counts.
  [[nodiscard]] std::vector<double> take_counts();
  /// Sums the loads of this step over the ranks, and changes the corrections of routers that have a
  /// rate if `updates`. Collective. The result has all layers of this stage.
  std::vector<LayerLoad> finish(bool updates);

 private:
  comm::World& world_;
  parallel::ModelInstance& model_;
  std::vector<double> counts_ = {0.0, 0.0, 0.0};
};

}  // namespace tessera::engine
