// SPDX-License-Identifier: Apache-2.0
// What a forward pass leaves for the backward pass, and what both need meanwhile: predicted by
// running the model's blocks on meta tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/parallel/activation_probe.h"

namespace tessera::planner {

struct Plan;

/// Bytes of one rank. Predictions of a whole step are a few percent above what the step needs.
struct Activations {
  std::int64_t training = 0;    ///< the largest moment of a step, on the stage that needs most
  std::int64_t evaluation = 0;  ///< of an evaluation; 0 where there is none
  /// Why nothing is predicted, as a sentence; empty: it is.
  std::string unknown;
};
/// Of a stage of the plan. `unknown` says why a model cannot be predicted: a block's operations
/// have no meta kernel or look at values, or the tensors of a sample are not known yet. Starts no
/// thread. Cost: a few milliseconds the first time, then arithmetic on what the plan keeps.
Activations predict_activations(const Plan& plan, int stage);

/// What the blocks of a plan's model need, for the sizes that were asked about. Copies of a plan
/// share it; whoever gives a copy another model gives it a new one. Threads: any.
class ProbeCache {
 public:
  /// Throws what the probe throws, at every call.
  const std::vector<parallel::BlockBytes>& training(const Plan& plan, bool recompute, bool split);
  std::int64_t evaluation(const Plan& plan);

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<parallel::BlockBytes>> training_;
  std::map<std::string, std::int64_t> evaluation_;
};

}  // namespace tessera::planner
