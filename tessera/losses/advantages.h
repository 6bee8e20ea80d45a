// SPDX-License-Identifier: Apache-2.0
// Advantages: how much better a completion, or a token of it, was than expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

// Legend: B completions, of which each group of `group_size` consecutive ones answers one prompt, T
// tokens, F reward functions. Nothing here is differentiable.
namespace tessera::losses {

/// Generalized advantage estimation (Schulman et al. 2016, eq. 16).
struct GaeOptions {
  double gamma = 1.0, lambda = 0.95;
};
struct GaeInput {
  at::Tensor rewards_BT, values_BT;
  at::Tensor mask_BT;      ///< the tokens of each completion, from its first on; undefined: all
  at::Tensor done_BT;      ///< where an episode ends; undefined: nowhere
  at::Tensor bootstrap_B;  ///< value of the state after the last token; undefined: 0
};
struct Gae {
  at::Tensor advantages_BT, returns_BT;  ///< 0 outside of the mask
};
Gae generalized_advantages(const GaeInput& in, const GaeOptions& options);

/// (x - mean) / sqrt(variance + 1e-8) over all tokens of the mask, with the unbiased variance; with
/// `keep_mean` the mean is added again. 0 outside of the mask.
at::Tensor whitened(const at::Tensor& values_BT, const at::Tensor& mask_BT, bool keep_mean = false);

/// The sum of each token's reward and the discounted later rewards (REINFORCE++, Hu 2025: its
/// advantages are these, whitened). 0 outside of the mask.
at::Tensor rewards_to_go(const at::Tensor& rewards_BT, const at::Tensor& mask_BT, double gamma);

/// The standard deviation by which rewards are divided.
enum class RewardScale : std::uint8_t { None, Group, Batch };
/// The combination of the rewards of several functions.
enum class RewardSum : std::uint8_t {
  SumThenNormalize,  ///< the weighted sum is normalized
  NormalizeThenSum   ///< each function's rewards within each group, then the sum over the batch
};
/// "none", "group", "batch"; "sum_then_normalize", "normalize_then_sum". Throws Error{Config} for
/// other names.
RewardScale reward_scale(const std::string& name);
RewardSum reward_sum(const std::string& name);

struct GroupOptions {
  std::int64_t group_size = 8;
  RewardScale scale = RewardScale::Group;
  RewardSum sum = RewardSum::SumThenNormalize;
  double epsilon = 1e-4;  ///< added to standard deviations, which are unbiased
};
/// Group-relative advantages (GRPO, Shao et al. 2024; without scale Dr. GRPO's, Liu et al. 2025).
/// Rewards [B, F], NaN where a function gives none, and weights [F] -> [B]. A completion without
/// any reward has the advantage 0 and is excluded from all means. Throws Error{Shape} unless B is a
/// multiple of the group size.
at::Tensor group_advantages(const at::Tensor& rewards_BF,
                            const at::Tensor& weights_F,
                            const GroupOptions& options);

struct LeaveOneOutOptions {
  std::int64_t group_size = 2;
  std::optional<std::pair<double, double>> clip;  ///< for the weighted sum of rewards
  double kl_coefficient = 0.0;
  bool normalize = false;  ///< over the batch
  double epsilon = 1e-4;
};
/// REINFORCE with the mean reward of the other completions of the group as baseline (RLOO, Ahmadian
/// et al. 2024). `kl_B`: the divergence of each completion from the reference, summed over its
/// tokens; times the coefficient it is subtracted from the clipped reward; undefined: none.
at::Tensor leave_one_out_advantages(const at::Tensor& rewards_BF,
                                    const at::Tensor& weights_F,
                                    const at::Tensor& kl_B,
                                    const LeaveOneOutOptions& options);

/// The next coefficient of a penalty that keeps the divergence near `target` (Ziegler et al. 2019):
/// it changes by at most a fifth of `samples` / `horizon`.
double adapted_kl_coefficient(
    double coefficient, double divergence, double target, double samples, double horizon);

}  // namespace tessera::losses
