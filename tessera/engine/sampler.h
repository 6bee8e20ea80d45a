// SPDX-License-Identifier: Apache-2.0
// Lets the model of a training continue eval.prompt.
#pragma once

#include <string>

#include "tessera/engine/eval_model.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// Used only on the rank's own thread.
class Sampler {
 public:
  /// The arguments must outlive it.
  Sampler(const planner::Plan& plan, EvalModel& model) : plan_(plan), model_(model) {}

  /// Generates a continuation of eval.prompt with the weights that eval.weights names, which rank 0
  /// returns; other ranks return an empty string. Collective.
  std::string sample();

 private:
  std::string text();

  const planner::Plan& plan_;
  EvalModel& model_;
};

}  // namespace tessera::engine
