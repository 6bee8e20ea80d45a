// SPDX-License-Identifier: Apache-2.0
// Lends a training's model to work that asks for the weights of evaluations.
#pragma once

#include "tessera/comm/world.h"
#include "tessera/engine/saver.h"
#include "tessera/engine/train_state.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::engine {

/// The model of a training, with the weights that eval.weights names. Used only on the rank's own
/// thread.
class EvalModel {
 public:
  /// The arguments must outlive it. `together`: all ranks take part in the passes of each.
  EvalModel(tasks::EvalWeights weights,
            bool together,
            comm::World& world,
            TrainState& state,
            Saver& saver)
      : weights_(weights), together_(together), world_(world), state_(state), saver_(saver) {}

  /// Returns the result of `work`, during which the model has these weights. Collective.
  template <class Work>
  auto with_weights(Work work) {
    state_.wait();
    if (weights_ == tasks::EvalWeights::Trained) return work();
    saver_.before_change();
    state_.exchange_average();
    auto out = work();
    state_.exchange_average();
    return out;
  }

  [[nodiscard]] parallel::Executor& executor() { return state_.executor(); }
  [[nodiscard]] comm::World& world() { return world_; }
  [[nodiscard]] std::int64_t steps() const { return state_.steps(); }

  /// True if this rank takes part when a text is generated. If weights are sharded, layers are
  /// split, experts are divided, or stages pass flows on, all ranks that take part generate the
  /// same text; so do ranks that share tokens in training, because here each has all tokens.
  [[nodiscard]] bool generates() {
    return world_.group(mesh::AxisSet::dp()).index == 0 || together_;
  }

 private:
  tasks::EvalWeights weights_;
  bool together_;
  comm::World& world_;
  TrainState& state_;
  Saver& saver_;
};

}  // namespace tessera::engine
