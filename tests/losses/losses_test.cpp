// SPDX-License-Identifier: Apache-2.0
// Losses at their limits, compared with numbers computed by hand; tests/golden compares them with
// recorded trainers.
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/losses/advantages.h"
#include "tessera/losses/cpo_orpo.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/kto.h"
#include "tessera/losses/policy.h"
#include "tessera/losses/reward.h"

namespace tessera::losses {
namespace {

using ::testing::HasSubstr;

// A few roundings of numbers near 1 in float64.
constexpr double kTolerance = 1e-12;

at::Tensor row(std::vector<double> values) {
  return at::tensor(values, at::kDouble);
}

/// One pair with the ratios 3 and -2.
PairScores one_pair() {
  return pair_scores({.chosen_P = row({-4}),
                      .rejected_P = row({-9}),
                      .reference_chosen_P = row({-7}),
                      .reference_rejected_P = row({-7}),
                      .chosen_tokens_P = row({5}),
                      .rejected_tokens_P = row({4})},
                     divergences().get("reverse_kl"));
}

double loss_of(const std::string& name, const PairOptions& options = {}) {
  return pair_losses().get(name).losses(one_pair(), options).item<double>();
}

double softplus(double x) {
  return std::log1p(std::exp(x));
}

TEST(PairLosses, AreTheirFormulas) {
  EXPECT_NEAR(loss_of("sigmoid"), softplus(-0.5), kTolerance);
  EXPECT_NEAR(loss_of("hinge"), 0.5, kTolerance);
  EXPECT_NEAR(loss_of("ipo"), std::pow(3.0 / 5 + 2.0 / 4 - 5, 2), kTolerance);
  EXPECT_NEAR(loss_of("sigmoid_norm"), softplus(-0.1 * (3.0 / 5 + 2.0 / 4)), kTolerance);
  EXPECT_NEAR(loss_of("bco_pair"), softplus(-0.3) + softplus(-0.2), kTolerance);
  EXPECT_NEAR(
      loss_of("nca_pair"), softplus(-0.3) + 0.5 * softplus(0.3) + 0.5 * softplus(-0.2), kTolerance);
  EXPECT_NEAR(loss_of("sppo_hard"), 4.0 + 9.0, kTolerance);
  EXPECT_NEAR(loss_of("robust", {.label_smoothing = 0.1}),
              (0.9 * softplus(-0.5) - 0.1 * softplus(0.5)) / 0.8,
              kTolerance);
  EXPECT_NEAR(loss_of("cdpo", {.label_smoothing = 0.1}),
              0.9 * softplus(-0.5) + 0.1 * softplus(0.5),
              kTolerance);
  EXPECT_NEAR(loss_of("sft"), 4.0, kTolerance);
}

TEST(PairLosses, OfAPolicyThatIsItsReferenceAreTheLossOfAGuess) {
  const at::Tensor same = row({-3, -8}), tokens = row({2, 4});
  const PairScores scores = pair_scores({.chosen_P = same,
                                         .rejected_P = same,
                                         .reference_chosen_P = same,
                                         .reference_rejected_P = same,
                                         .chosen_tokens_P = tokens,
                                         .rejected_tokens_P = tokens},
                                        divergences().get("js_divergence"));
  for (const char* name : {"sigmoid", "sigmoid_norm", "cdpo", "aot", "aot_unpaired"}) {
    const at::Tensor losses = pair_losses().get(name).losses(scores, {.label_smoothing = 0.2});
    EXPECT_NEAR(losses.mean().item<double>(), std::log(2.0), kTolerance) << name;
  }
}

TEST(PairLosses, RefuseTensorsOfOtherSizes) {
  const at::Tensor two = row({1, 2}), three = row({1, 2, 3});
  try {
    pair_scores({.chosen_P = two,
                 .rejected_P = three,
                 .reference_chosen_P = two,
                 .reference_rejected_P = two,
                 .chosen_tokens_P = two,
                 .rejected_tokens_P = two},
                divergences().get("reverse_kl"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Shape);
  }
}

TEST(PairLosses, NameTheNearestLoss) {
  try {
    (void)pair_losses().get("sigmod");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("sigmod"));
    EXPECT_THAT(error.fix(), HasSubstr("sigmoid"));
  }
}

TEST(Divergences, OfAlphaTendToTheReverseDivergence) {
  const at::Tensor ratios = row({-2, 0.5, 3});
  const Divergence& alpha = divergences().get("alpha_divergence");

  EXPECT_TRUE(at::equal(alpha.score(ratios, 1.0), ratios));
  EXPECT_TRUE(at::allclose(alpha.score(ratios, 1.0 + 1e-5), ratios, 1e-4));
  EXPECT_TRUE(alpha.score(row({1e6}), 2.0).isfinite().all().item<bool>());
}

TEST(Orpo, IsFiniteWithItsGradientForTextsThatAreCertainOrHopeless) {
  const at::Tensor chosen = row({-1e-12, -700}).set_requires_grad(true);
  const at::Tensor loss = orpo(chosen, row({-0.5, -0.5}), 0.1).sum();

  const at::Tensor grad = torch::autograd::grad({loss}, {chosen}).front();

  EXPECT_TRUE(loss.isfinite().item<bool>());
  EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST(AlphaPo, TendsToTheLogProbability) {
  const at::Tensor p = row({-0.3, -2});

  EXPECT_TRUE(at::equal(cpo_rewards(p, {.alpha = 0.0}), p));
  EXPECT_TRUE(at::allclose(cpo_rewards(p, {.alpha = 1e-6}), p, 1e-5));
}

TEST(Kto, TakesAnEmptyBatchForNoDivergence) {
  EXPECT_EQ(kto_divergence(row({})).item<double>(), 0.0);
  EXPECT_EQ(kto_divergence(row({-1, -3})).item<double>(), 0.0);
  EXPECT_EQ(kto_divergence(row({1, 3})).item<double>(), 2.0);
}

TEST(Reward, OfEqualTextsComparesTheirLastToken) {
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>{5, 6, 0, 0}, at::kLong).view({1, 4});
  const at::Tensor scores = row({1, 2, 3, 4}).view({1, 4});

  const ComparedTokens tokens = compared_tokens(ids, ids, /*padding=*/0);

  EXPECT_EQ(tokens.begin_P.item<std::int64_t>(), 3);
  EXPECT_EQ(tokens.end_P.item<std::int64_t>(), 4);
  EXPECT_NEAR(
      tokenwise_reward(scores, scores - 1, tokens).item<double>(), softplus(-1), kTolerance);
}

TEST(Advantages, OfAGroupAndOfTheOthersAreTheirFormulas) {
  const at::Tensor rewards = row({1, 0, 0, 1, 1, 0, 0, 0}).view({8, 1}), weight = row({1});

  const at::Tensor group = group_advantages(rewards, weight, {.group_size = 8});
  const at::Tensor others = leave_one_out_advantages(rewards, weight, {}, {.group_size = 8});

  const double deviation = std::sqrt((3 * 0.625 * 0.625 + 5 * 0.375 * 0.375) / 7) + 1e-4;
  EXPECT_NEAR(group[0].item<double>(), 0.625 / deviation, kTolerance);
  EXPECT_NEAR(group[1].item<double>(), -0.375 / deviation, kTolerance);
  EXPECT_NEAR(others[0].item<double>(), 1 - 2.0 / 7, kTolerance);
  EXPECT_NEAR(others[1].item<double>(), -3.0 / 7, kTolerance);
}

// TRL's trainer (0 / 0 there): a completion that alone has a reward in its group has no advantage,
// and does not count in the moments of the batch.
TEST(Advantages, OfACompletionWithoutOthersAreLeftOutOfTheBatch) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const LeaveOneOutOptions options{.group_size = 2, .normalize = true};
  const at::Tensor with = leave_one_out_advantages(
                       row({1, 0, 3, none, 0, 4}).view({6, 1}), row({1}), {}, options),
                   without = leave_one_out_advantages(
                       row({1, 0, 0, 4}).view({4, 1}), row({1}), {}, options);

  EXPECT_EQ(with[2].item<double>(), 0.0);
  EXPECT_EQ(with[3].item<double>(), 0.0);
  for (const auto& [a, b] : {std::pair{0, 0}, {1, 1}, {4, 2}, {5, 3}})
    EXPECT_DOUBLE_EQ(with[a].item<double>(), without[b].item<double>());
}

TEST(Advantages, OfRewardsThatAreAllEqualAreZero) {
  const at::Tensor rewards = at::full({6, 2}, 0.5, at::kDouble), weights = row({1, 2});

  for (const RewardScale scale : {RewardScale::None, RewardScale::Group, RewardScale::Batch}) {
    EXPECT_EQ(group_advantages(rewards, weights, {.group_size = 3, .scale = scale})
                  .abs()
                  .max()
                  .item<double>(),
              0.0);
  }
  EXPECT_THROW(group_advantages(rewards, weights, {.group_size = 4}), Error);
}

TEST(Advantages, SumTheRewardsThatFollow) {
  const at::Tensor rewards = row({1, 2, 4, 8}).view({1, 4}), mask = row({1, 1, 1, 0}).view({1, 4});

  const at::Tensor sums = rewards_to_go(rewards, mask, 0.5);

  EXPECT_TRUE(at::equal(sums, row({1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4, 0}).view({1, 4})));
}

TEST(Advantages, WithoutDiscountAreRewardsLessTheValue) {
  const at::Tensor rewards = row({0, 0, 3}).view({1, 3}), values = row({1, 2, 1}).view({1, 3});

  const Gae gae = generalized_advantages({.rewards_BT = rewards, .values_BT = values},
                                         {.gamma = 1, .lambda = 1});

  EXPECT_TRUE(at::equal(gae.advantages_BT, row({2, 1, 2}).view({1, 3})));
  EXPECT_TRUE(at::equal(gae.returns_BT, row({3, 3, 3}).view({1, 3})));
}

TEST(KlCoefficient, ChangesByAtMostAFifthOfTheHorizon) {
  EXPECT_NEAR(adapted_kl_coefficient(0.1, 6, 6, 64, 640), 0.1, kTolerance);
  EXPECT_NEAR(adapted_kl_coefficient(0.1, 60, 6, 64, 640), 0.1 * 1.02, kTolerance);
  EXPECT_NEAR(adapted_kl_coefficient(0.1, 0, 6, 64, 640), 0.1 * 0.98, kTolerance);
}

/// A batch in two parts, of which each gives its sum and its count, has the loss of the whole.
TEST(PolicyLosses, OfABatchInPartsAddUpToThatOfTheWhole) {
  const at::Tensor log_p = -at::rand({4, 5}, at::kDouble) - 0.1;
  const at::Tensor mask =
      row({1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0}).view({4, 5});
  const PolicySample whole{.log_probabilities_BT = log_p,
                           .old_BT = log_p + 0.3 * at::rand({4, 5}, at::kDouble),
                           .mask_BT = mask,
                           .advantages = row({1, -2, 0.5, -1})};
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return PolicySample{.log_probabilities_BT = log_p.narrow(0, first, count),
                        .old_BT = whole.old_BT.narrow(0, first, count),
                        .mask_BT = mask.narrow(0, first, count),
                        .advantages = whole.advantages.narrow(0, first, count)};
  };
  for (const std::string& name : policy_losses().names()) {
    const PolicyLoss& loss = policy_losses().get(name);
    double sum = 0, count = 0;
    for (const PolicySample& sample : {part(0, 1), part(1, 3)}) {
      const PolicyOutcome out = policy_loss(loss, sample, {});
      sum += aggregated_sum(loss.aggregation, out.losses_BT, sample.mask_BT).item<double>();
      count += aggregated_count(loss.aggregation, sample.mask_BT, 8);
    }

    const PolicyOutcome all = policy_loss(loss, whole, {});

    EXPECT_NEAR(sum / count,
                aggregated_sum(loss.aggregation, all.losses_BT, mask).item<double>() /
                    aggregated_count(loss.aggregation, mask, 8),
                kTolerance)
        << name;
  }
}

/// TRL bounds ratios by delta before it counts those that were clipped.
TEST(PolicyLosses, CountClippedRatiosAfterDelta) {
  const auto clipped = [](std::optional<double> delta) {
    PolicyOptions options;
    options.delta = delta;
    const PolicySample sample = {.log_probabilities_BT = row({1.5, 0.5, 1.1}).log().unsqueeze(1),
                                 .old_BT = at::zeros({3, 1}, at::kDouble),
                                 .reference_BT = {},
                                 .mask_BT = at::ones({3, 1}, at::kDouble),
                                 .advantages = row({1, -1, 1}),
                                 .entropies_BT = {}};
    const PolicyOutcome out = policy_loss(policy_losses().get("grpo"), sample, options);
    return std::pair(out.low_BL.sum().item<std::int64_t>(), out.high_BL.sum().item<std::int64_t>());
  };

  EXPECT_EQ(clipped({}), std::pair(1L, 1L));
  EXPECT_EQ(clipped(1.3), std::pair(1L, 1L));
  EXPECT_EQ(clipped(1.1), std::pair(1L, 0L));
  EXPECT_EQ(clipped(0.7), std::pair(1L, 0L));
}

/// With the policy that wrote the texts, every ratio is 1, and the gradient is that of the
/// advantage-weighted log-probability.
TEST(PolicyLosses, OnPolicyHaveTheGradientOfReinforce) {
  const at::Tensor advantages = row({1, -2});
  for (const std::string& name : policy_losses().names()) {
    const PolicyLoss& loss = policy_losses().get(name);
    const at::Tensor log_p = (-at::rand({2, 3}, at::kDouble) - 0.1).set_requires_grad(true);
    const at::Tensor mask = at::ones({2, 3}, at::kDouble);
    const PolicyOutcome out =
        policy_loss(loss,
                    {.log_probabilities_BT = log_p, .mask_BT = mask, .advantages = advantages},
                    {.epsilon_high = name == "cispo" ? 2.0 : 0.2});

    const at::Tensor grad =
        torch::autograd::grad({aggregated_sum(Aggregation::TokenMean, out.losses_BT, mask)},
                              {log_p})
            .front();

    EXPECT_TRUE(at::allclose(grad, -advantages.unsqueeze(1).expand({2, 3}))) << name;
  }
}

}  // namespace
}  // namespace tessera::losses
