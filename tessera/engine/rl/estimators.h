// SPDX-License-Identifier: Apache-2.0
// How rewards become advantages: the estimators that tasks/rl/options.h names, over
// losses/advantages.h and losses/ppo.h. Adding one is one function that advantage_estimators()
// names.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/base/registry.h"
#include "tessera/tasks/rl/options.h"

// Legend: B completions, of which each `samples` that follow each other answer one prompt, T
// columns, F rewards. Nothing here has a gradient.
namespace tessera::engine::rl {

struct Scored {
  at::Tensor rewards_BF, weights_F;  ///< fp64; NaN where a reward says nothing
  at::Tensor mask_BT;                ///< bool: columns that predict a token of the completion
  at::Tensor old_BT;                 ///< log-probabilities under the policy that wrote
  at::Tensor reference_BT;           ///< under the reference; undefined: there is none
  at::Tensor values_BT;              ///< of the critic; undefined: there is none
};
struct Advantages {
  at::Tensor advantages_BT;  ///< 0 outside of the mask
  at::Tensor returns_BT;     ///< what the critic is to say; undefined without one
};
using AdvantageEstimator = Advantages (*)(const Scored& scored, const tasks::RlOptions& options);
const Registry<AdvantageEstimator>& advantage_estimators();

/// The weighted sum of the rewards that are there, clipped where the options say so; 0 where there
/// is none. [B].
at::Tensor total_rewards(const Scored& scored, const tasks::RlOptions& options);
/// Estimates of the divergence from the reference at the tokens of the mask, 0 elsewhere.
at::Tensor divergence(const Scored& scored, const tasks::RlOptions& options);

}  // namespace tessera::engine::rl
