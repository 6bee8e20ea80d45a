// SPDX-License-Identifier: Apache-2.0
// Computes advantages from rewards: the estimators that tasks/rl/options.h names, based on
// losses/advantages.h and losses/ppo.h. To add one, add a function to advantage_estimators().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"
#include "tessera/tasks/rl/options.h"
#include "tessera/tasks/rl/rl.h"

// Legend: B completions, of which `samples` consecutive ones answer the same prompt, T columns, F
// rewards. Nothing here has a gradient.
namespace tessera::rlhf {

struct Scored {
  at::Tensor rewards_BF, weights_F;  ///< fp64; NaN if a function gives no reward
  at::Tensor mask_BT;                ///< bool: columns that predict a token of the completion
  /// Log-probabilities under the policy that wrote the completions.
  at::Tensor old_BT;
  at::Tensor reference_BT;  ///< under the reference; undefined without one
  at::Tensor values_BT;     ///< of the critic; undefined without one
};
struct Advantages {
  at::Tensor advantages_BT;  ///< 0 outside of the mask
  at::Tensor returns_BT;     ///< targets of the critic; undefined without one
};
struct AdvantageEstimator {
  Advantages (*estimate)(const Scored& scored, const tasks::RlOptions& options);
  /// Returns the lines that define the advantages A with the numbers of `options`, from the rewards
  /// R of completions and the divergences KL of tokens; without the whitening.
  std::vector<std::string> (*formula)(const tasks::RlOptions& options);
  Advantages operator()(const Scored& scored, const tasks::RlOptions& options) const {
    return estimate(scored, options);
  }
};
const Registry<AdvantageEstimator>& advantage_estimators();

/// Returns the lines that define rewards and advantages of a configuration, as plain text.
std::vector<std::string> advantage_formula(const tasks::Rl& task);

/// Returns the weighted sum of the rewards that were given, clipped if the options say so; 0 if
/// there are none. [B].
at::Tensor total_rewards(const Scored& scored, const tasks::RlOptions& options);
/// Returns estimates of the divergence from the reference at the tokens of the mask, 0 elsewhere.
at::Tensor divergence(const Scored& scored, const tasks::RlOptions& options);

}  // namespace tessera::rlhf
