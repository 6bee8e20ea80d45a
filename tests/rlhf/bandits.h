// SPDX-License-Identifier: Apache-2.0
// Bandits whose best policy is known in closed form, for every algorithm of the task rl.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gtest/gtest.h>

namespace tessera::test {

/// A bandit: one prompt, one token, and a reward of 1 for some of the tokens. Under a penalty of
/// `coefficient` times the divergence, the best policy is proportional to
/// p_ref e^(r / coefficient).
struct Bandit {
  std::string name, rl;
  double coefficient = 0.4;
  double scale = 1.0;      ///< of the reward in the estimator's expectation
  bool deviation = false;  ///< whether the reward is divided by its deviation under the policy
  std::int64_t batch = 64;
};

/// The probability of the rewarded tokens under the best policy, whose odds are those of the
/// reference times e^(scale / (coefficient deviation)). `share`: under the reference. Where rewards
/// are divided by their deviation, the nearest solution to the reference is meant; the coefficient
/// must be so large that it is below 1/2.
inline double best_share(const Bandit& bandit, double share) {
  const auto odds = [](double p) { return std::log(p / (1 - p)); };
  const auto beyond = [&](double p) {
    const double deviation = bandit.deviation ? std::sqrt(p * (1 - p)) : 1.0;
    return odds(p) > odds(share) + bandit.scale / (bandit.coefficient * deviation);
  };
  double low = share, high = bandit.deviation ? 0.5 : 1 - 1e-9;
  EXPECT_TRUE(beyond(high));
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (beyond(middle) ? high : low) = middle;
  }
  return (low + high) / 2;
}

/// How far the mean reward of the last steps may be from that of the best policy. With three seeds
/// of every algorithm it was at most 0.022 away.
constexpr double kBanditTolerance = 0.05;

inline std::vector<Bandit> bandits() {
  return {
      // The mean has the completion itself in it, so that the reward counts 63/64.
      {"dr_grpo",
       R"("algorithm": "dr_grpo", "samples": 64, "kl": {"coefficient": 0.4, "estimator": "k2"})",
       0.4,
       63.0 / 64},
      // Divided by the deviation of the group, the reward counts more the rarer it is earned or
      // missed, so that the policy is another one.
      {"grpo",
       R"("algorithm": "grpo", "samples": 64, "kl": {"coefficient": 2, "estimator": "k2"})",
       2,
       63.0 / 64,
       /*deviation=*/true},
      {"dapo",
       R"("algorithm": "dapo", "samples": 64, "advantage": {"scale": "none"}, "kl": {"coefficient": 0.4, "estimator": "k2"})",
       0.4,
       63.0 / 64},
      {"gspo",
       R"("algorithm": "gspo", "samples": 64, "advantage": {"scale": "none"}, "kl": {"coefficient": 0.4, "estimator": "k2"})",
       0.4,
       63.0 / 64},
      {"rloo", R"("algorithm": "rloo", "samples": 64, "kl": {"coefficient": 0.4})"},
      {"reinforce++",
       R"("algorithm": "reinforce++", "advantage": {"whiten": false}, "kl": {"coefficient": 0.4})"},
      {"ppo",
       R"("algorithm": "ppo", "advantage": {"whiten": false}, "kl": {"coefficient": 0.4}, "critic": {"lr": 1e-2})"},
      {"dschat",
       R"("preset": "dschat:ppo", "advantage": {"lambda": 1}, "kl": {"coefficient": 0.4}, "critic": {"lr": 1e-2})"}};
}

/// Trains on the bandit, and compares the mean reward of the last steps with that of the best
/// policy.
inline void expect_best_policy(const Bandit& bandit, int seed) {
  SCOPED_TRACE(bandit.name + ", seed " + std::to_string(seed));
  std::string prompts;
  for (int i = 0; i < 64; ++i)
    prompts += "{\"prompt\": \"a\"}\n";
  constexpr std::int64_t kSteps = 160, kLast = 60;
  const std::string common =
      R"("rewards": [{"type": "regex", "pattern": "[@-~]"}], "max_new_tokens": 1, )";
  TinyRun run = reinforcing(prompts, "{" + common + bandit.rl + "}");
  run.set("optimizer.params", R"({"lr": 5e-3, "weight_decay": 0})")
      .set(
          "scheduler",
          R"({"type": "WarmupCosine", "params": {"warmup_num_steps": 5, "total_num_steps": 160, "min_lr": 1e-4}})")
      .set("trainer.max_steps", "160")
      .set("trainer.seed", std::to_string(seed));
  auto metrics = metrics_of(run, {.accumulation = 1, .micro_batch = bandit.batch}, kSteps);
  const std::vector<double>& rewards = metrics["reward"];
  // 63 of 256 tokens, which are nearly equally probable at the beginning.
  const double share = 63.0 / 256, best = best_share(bandit, share);
  double mean = 0;
  for (std::size_t i = kSteps - kLast; i < kSteps; ++i)
    mean += rewards.at(i) / kLast;
  EXPECT_NEAR(rewards.front(), share, 0.2);
  EXPECT_NEAR(mean, best, kBanditTolerance);
}

}  // namespace tessera::test
