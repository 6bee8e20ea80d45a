// SPDX-License-Identifier: Apache-2.0
// Explains an update of a finished run: the share of each completion in the gradient of the policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/contributions.h"

namespace tessera::planner {
class PlanWithData;
}

namespace tessera::rlhf {

struct CompletionShare {
  std::int64_t number = 0;  ///< of the completion in its rollout
  std::int64_t prompt = 0;  ///< index of its prompt in the data
  std::int64_t tokens = 0;
  bool learned = true;     ///< whether it enters the loss
  double reward = 0.0;     ///< the weighted sum
  double advantage = 0.0;  ///< mean over its tokens
  engine::Contribution contribution;
  std::string prompt_text, text;
};

struct StepShares {
  std::int64_t version = 0;  ///< the number of updates of the policy that wrote the completions
  /// The completions, sorted by the absolute value of their shares, largest first.
  std::vector<CompletionShare> completions;
  /// The share of what belongs to no completion: pretraining texts, and losses of whole batches.
  double rest = 0.0;
};

/// Repeats the run's updates before `step` on its ledger and computes the shares of the completions
/// that `step` learned; writes nothing. The result is the same on every rank. Throws Error{Format}
/// if the ledger lacks a rollout. Collective.
StepShares shares_of_step(const planner::PlanWithData& plan,
                          comm::World& world,
                          const std::shared_ptr<const data::Datasets>& data,
                          const std::filesystem::path& run,
                          std::int64_t step);

}  // namespace tessera::rlhf
