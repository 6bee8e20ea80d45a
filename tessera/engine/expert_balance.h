// SPDX-License-Identifier: Apache-2.0
// The part of a step that concerns experts: common denominators of the terms that balance them,
// reports of their loads, and corrections of routers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/nn/block.h"
#include "tessera/nn/expert_load.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/report/expert_loads.h"

namespace tessera::engine {

/// Used only by TrainState, on the rank's own thread.
class ExpertBalance {
 public:
  /// Returns whether any stage of the model has experts.
  static bool has_experts(const nn::Model& model);
  ExpertBalance(comm::World& world, parallel::ModelInstance& model, int stages)
      : world_(world), model_(model), stages_(stages) {}

  /// Counts a micro-batch of the step.
  void count(const nn::Batch& batch);
  /// This rank's part of nn::common_denominators() of the step, such that the sum over all ranks is
  /// that of the global batch; resets the counts.
  [[nodiscard]] std::vector<double> take_counts();

  /// Sums the choices of the step over all ranks, returns those of every sparse layer of the model
  /// in order, and appends to `metrics`: "expert_load", the largest load of an expert divided by
  /// the mean load of its layer, of the most uneven layer; "expert_entropy", the mean over layers
  /// of the entropy of the loads divided by that of equal loads; and "dropped_choices", the share
  /// of dropped choices, for a model with a capacity. If `updates`, it then changes the corrections
  /// of routers that have a rate: loads are whole numbers, so that the result is the same in every
  /// layout. Collective.
  std::vector<report::LayerLoads> finish(bool updates, Metrics& metrics);

  /// The corrections in fp32, where the working weights have fewer bits; null if there are none.
  [[nodiscard]] json::Value state() const;
  /// Restores state(); null: the corrections are those of the weights. Call it after the weights
  /// were loaded.
  void restore(const json::Value* state);

 private:
  using Values = std::vector<float>;
  /// The choices of all experts of one layer, and the number of dropped choices.
  struct Layer {
    int block = 0;
    nn::HasExperts::Router router;
    std::vector<double> counts;  ///< [E + 1]
  };
  [[nodiscard]] std::vector<Layer> take_loads();
  struct AllLoads {
    std::vector<report::LayerLoads> layers;
    bool drops = false;  ///< some layer has a capacity
  };
  [[nodiscard]] AllLoads of_all_stages(const std::vector<Layer>& layers);
  void correct(const Layer& layer);
  [[nodiscard]] Values& corrections_of(const Layer& layer);
  void write(const Layer& layer, const Values& values);
  void share_between_stages();

  comm::World& world_;
  parallel::ModelInstance& model_;
  int stages_;
  std::vector<double> counts_ = {0.0, 0.0, 0.0};
  std::map<int, Values> corrections_;  ///< by block, in fp32
};

}  // namespace tessera::engine
