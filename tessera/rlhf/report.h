// SPDX-License-Identifier: Apache-2.0
// Metrics of a rollout: rewards, lengths, entropy, divergence, parity.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/engine/loss_terms.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/estimators.h"

namespace tessera::rlhf {

struct RolloutFacts {
  std::span<const Completion> completions;
  const Scored& scored;
  const at::Tensor& generated_BT;  ///< log-probabilities of the tokens when they were sampled
  const at::Tensor& returns_BT;    ///< undefined without a critic
  std::vector<std::string> reward_names;
  bool measured = false;  ///< whether training computed scored.old_BT
};

/// "reward" (the mean of the weighted sums), "reward/NAME" where there are several, "reward_std"
/// (the mean deviation within a prompt's completions) and "equal_groups" (the share of prompts
/// whose completions all have one reward) where a prompt has several, "length", "truncated",
/// "entropy" (a token's), "repetition" (the share of a completion's sequences of three tokens that
/// occur in it before), "kl_reference" (a token's divergence, k3) where there is a reference,
/// "explained_variance" of the critic, "parity_max" and "parity_mean" (the difference of
/// log-probabilities between drawing and training).
engine::Metrics report_of(const RolloutFacts& facts, const tasks::RlOptions& options);
/// Adds "parity_max" and "parity_mean" of the tokens of the mask.
void add_parity(engine::Metrics& to,
                const at::Tensor& generated_BT,
                const at::Tensor& trained_BT,
                const at::Tensor& mask_BT);
/// Adds "ratio" and "ratio_max" of the tokens of the mask: the mean and the largest probability
/// under the policy that learns, divided by that under the policy that wrote.
void add_ratios(engine::Metrics& to,
                const at::Tensor& learned_BT,
                const at::Tensor& written_BT,
                const at::Tensor& mask_BT);

}  // namespace tessera::rlhf
