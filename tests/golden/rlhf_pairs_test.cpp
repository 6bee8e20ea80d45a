// SPDX-License-Identifier: Apache-2.0
// Losses of preference optimisation and of reward models, with their gradients, against what TRL's
// and DeepSpeed-Chat's own functions give in float64.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "rlhf_support.h"

#include "tessera/losses/cpo_orpo.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/kto.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/reward.h"

namespace tessera {
namespace {

using golden::at;
using golden::doubles;
using golden::expect_near;
using golden::gradient;
using golden::into;
using golden::leaf;

at::Tensor half(const at::Tensor& rows, int which) {
  return rows.chunk(2, 0)[static_cast<std::size_t>(which)];
}

/// A case of trl_dpo.json.
struct DpoCase {
  std::vector<std::string> losses;
  std::vector<double> weights;
  losses::PairOptions options;
  std::string divergence = "reverse_kl";
  double alpha = 1.0;
  std::optional<double> tail_alpha;
  bool weighted = false, reference_free = false;

  explicit DpoCase(const json::Value& entry) {
    const json::Value& type = at(entry, "loss_type");
    if (type.is_array()) {
      for (const json::Value& name : type.items())
        losses.push_back(name.as_string());
    } else {
      losses.push_back(type.as_string());
    }
    weights.assign(losses.size(), 1.0);
    golden::read_keys(
        at(entry, "hyper"),
        {{"beta", into(options.beta)},
         {"label_smoothing", into(options.label_smoothing)},
         {"discopop_tau", into(options.discopop_tau)},
         {"f_divergence_type", into(divergence)},
         {"f_alpha_divergence_coef", into(alpha)},
         {"ld_alpha", [this](const json::Value& value) { tail_alpha = value.as_double(); }},
         {"use_weighting", into(weighted)},
         {"reference_free", into(reference_free)},
         {"loss_weights", [this](const json::Value& value) { weights = golden::numbers(value); }}});
  }
};

void check_conservative(const json::Value& record, const json::Value& entry) {
  const at::Tensor zero = at::zeros_like(doubles(at(record, "policy_chosen")));
  const at::Tensor chosen = leaf(doubles(at(record, "policy_chosen")) -
                                 doubles(at(record, "ref_chosen"))),
                   rejected = leaf(doubles(at(record, "policy_rejected")) -
                                   doubles(at(record, "ref_rejected")));
  const DpoCase of(entry);

  const at::Tensor losses = losses::pair_losses().get("cdpo").losses(
      losses::pair_scores({.chosen_P = chosen,
                           .rejected_P = rejected,
                           .reference_chosen_P = zero,
                           .reference_rejected_P = zero,
                           .chosen_tokens_P = zero,
                           .rejected_tokens_P = zero},
                          losses::divergences().get("reverse_kl")),
      of.options);

  expect_near(losses, at(entry, "losses"), "losses");
  expect_near(losses.mean(), at(entry, "loss"), "loss");
  expect_near(gradient(losses.mean(), chosen), at(entry, "d_loss_d_chosen_logratio"), "chosen");
  expect_near(
      gradient(losses.mean(), rejected), at(entry, "d_loss_d_rejected_logratio"), "rejected");
}

void check_dpo_case(const json::Value& record, const json::Value& entry) {
  const DpoCase of(entry);
  const at::Tensor tokens_of = doubles(at(record, "completion_mask"));
  const at::Tensor mask = tokens_of.narrow(1, 1, tokens_of.size(1) - 1);
  const at::Tensor policy = leaf(doubles(at(record, "policy_logps")));
  at::Tensor reference = doubles(at(record, "ref_logps"));
  if (of.reference_free) reference = at::zeros_like(reference);
  const at::Tensor tokens = mask.sum(1);
  at::Tensor weights = mask;
  if (of.tail_alpha) {
    const at::Tensor shared = at::minimum(half(tokens, 0), half(tokens, 1));
    weights = losses::tail_weights(mask, at::cat({shared, shared}), *of.tail_alpha, policy);
  }
  const at::Tensor log_p = (policy * weights).sum(1), ref = (reference * weights).sum(1);

  const losses::PairScores scores =
      losses::pair_scores({.chosen_P = half(log_p, 0),
                           .rejected_P = half(log_p, 1),
                           .reference_chosen_P = half(ref, 0),
                           .reference_rejected_P = half(ref, 1),
                           .chosen_tokens_P = half(tokens, 0),
                           .rejected_tokens_P = half(tokens, 1),
                           .chosen_unweighted_P = half((policy * mask).sum(1), 0)},
                          losses::divergences().get(of.divergence),
                          of.alpha);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < of.losses.size(); ++i) {
    const losses::PairLoss& kind = losses::pair_losses().get(of.losses[i]);
    at::Tensor each = kind.losses(scores, of.options);
    if (of.weighted) {
      const at::Tensor rows =
          losses::on_policy_weights(policy, doubles(at(record, "log_sum_sq_probs")), mask);
      each = each * half(rows, 0) * half(rows, 1);
    }
    loss = loss +
           of.weights[i] * (kind.over_tokens ? each.sum() / half(tokens, 0).sum() : each.mean());
  }

  expect_near(loss, at(entry, "loss"), "loss");
  expect_near(gradient(loss, policy), at(entry, "d_loss_d_policy_logps"), "gradient");
  const at::Tensor chosen = of.options.beta * scores.chosen_ratios_P,
                   rejected = of.options.beta * scores.rejected_ratios_P;
  expect_near(chosen.mean(), at(entry, "rewards_chosen_mean"), "rewards of chosen");
  expect_near(rejected.mean(), at(entry, "rewards_rejected_mean"), "rewards of rejected");
  expect_near((chosen - rejected).mean(), at(entry, "rewards_margin_mean"), "margin");
  expect_near(
      chosen.gt(rejected).to(at::kDouble).mean(), at(entry, "rewards_accuracy"), "accuracy");
}

void check_trl_dpo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    SCOPED_TRACE(at(entry, "loss_type").dump() + at(entry, "hyper").dump());
    if (const json::Value* name = entry.find("name"); name != nullptr) {
      ASSERT_EQ(name->as_string(), "cdpo");
      check_conservative(record, entry);
    } else {
      check_dpo_case(record, entry);
    }
  }
}

void check_deepspeed_dpo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor chosen = leaf(doubles(at(record, "policy_chosen_logps"))),
                     rejected = leaf(doubles(at(record, "policy_rejected_logps")));
    const at::Tensor tokens = at::ones_like(chosen);
    const losses::PairOptions options{.beta = at(entry, "beta").as_double(),
                                      .label_smoothing = at(entry, "label_smoothing").as_double()};

    const losses::PairScores scores =
        losses::pair_scores({.chosen_P = chosen,
                             .rejected_P = rejected,
                             .reference_chosen_P = doubles(at(record, "ref_chosen_logps")),
                             .reference_rejected_P = doubles(at(record, "ref_rejected_logps")),
                             .chosen_tokens_P = tokens,
                             .rejected_tokens_P = tokens},
                            losses::divergences().get("reverse_kl"));
    const at::Tensor loss = losses::pair_losses().get("cdpo").losses(scores, options).mean();

    expect_near(loss, at(entry, "loss"), "loss");
    expect_near(gradient(loss, chosen), at(entry, "d_loss_d_policy_chosen"), "chosen");
    expect_near(gradient(loss, rejected), at(entry, "d_loss_d_policy_rejected"), "rejected");
    expect_near(options.beta * scores.chosen_ratios_P, at(entry, "chosen_rewards"), "rewards");
    expect_near(options.beta * scores.rejected_ratios_P, at(entry, "rejected_rewards"), "rewards");
  }
}

void check_kto(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor policy = leaf(doubles(at(record, "policy_logps")));
    const at::Tensor wanted = doubles(at(entry, "label")).ne(0);
    const losses::KtoOptions options{
        .beta = at(entry, "beta").as_double(),
        .desirable_weight = at(entry, "desirable_weight").as_double(),
        .undesirable_weight = at(entry, "undesirable_weight").as_double()};

    const at::Tensor divergence = losses::kto_divergence(doubles(at(entry, "KL_policy_logps")) -
                                                         doubles(at(record, "KL_ref_logps")));
    const at::Tensor loss =
        losses::kto(losses::kto_losses().get(at(entry, "loss_type").as_string()),
                    policy - doubles(at(record, "ref_logps")),
                    wanted,
                    divergence,
                    options)
            .mean();

    // Losses that do not read it are recorded with a divergence of 0.
    if (losses::kto_losses().get(at(entry, "loss_type").as_string()).reads_divergence)
      expect_near(divergence, at(entry, "kl"), "divergence");
    expect_near(loss, at(entry, "loss"), "loss");
    expect_near(gradient(loss, policy), at(entry, "d_loss_d_policy_logps"), "gradient");
  }
}

void check_batch_log_probabilities(const json::Value& record) {
  const at::Tensor logits = doubles(at(record, "logits")),
                   labels = golden::integers(at(record, "labels"));
  const std::int64_t T = labels.size(1) - 1;
  const at::Tensor next = labels.narrow(1, 1, T), mask = next.ne(-100);

  const at::Tensor log_p =
      losses::token_log_probabilities(logits.narrow(1, 0, T), next.clamp_min(0));

  expect_near(losses::masked_sums(log_p, mask), at(record, "sum"), "sums");
  expect_near(losses::masked_means(log_p, mask), at(record, "average"), "means");
}

void check_cpo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    losses::CpoOptions options;
    std::string type;
    golden::read_keys(at(entry, "hyper"),
                      {{"alpha", into(options.alpha)},
                       {"simpo_gamma", into(options.gamma)},
                       {"loss_type", into(type)},
                       {"beta", into(options.beta)},
                       {"label_smoothing", into(options.label_smoothing)}});
    const losses::CpoLoss& kind = losses::cpo_losses().get(type);
    EXPECT_EQ(kind.of_means, at(entry, "log_probabilities").as_string().rfind("averages", 0) == 0);
    const char* const form = kind.of_means ? "average" : "sum";
    const at::Tensor chosen = leaf(doubles(at(record, std::string("chosen_") + form))),
                     rejected = leaf(doubles(at(record, std::string("rejected_") + form)));

    const at::Tensor losses = losses::cpo(kind, chosen, rejected, options);

    expect_near(losses, at(entry, "losses"), "losses");
    expect_near(losses.mean(), at(entry, "loss"), "loss");
    expect_near(gradient(losses.mean(), chosen), at(entry, "d_loss_d_chosen"), "chosen");
    expect_near(gradient(losses.mean(), rejected), at(entry, "d_loss_d_rejected"), "rejected");
    expect_near(options.beta * losses::cpo_rewards(chosen, options),
                at(entry, "chosen_rewards"),
                "rewards");
    expect_near(options.beta * losses::cpo_rewards(rejected, options),
                at(entry, "rejected_rewards"),
                "rewards");
  }
  check_batch_log_probabilities(at(record, "batch_logps"));
}

void check_orpo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor chosen = leaf(doubles(at(record, "chosen"))),
                     rejected = leaf(doubles(at(record, "rejected")));
    const double beta = at(entry, "beta").as_double();

    const at::Tensor losses = losses::orpo(chosen, rejected, beta);
    const at::Tensor odds = losses::log_odds_ratios(chosen, rejected);

    expect_near(-losses, at(entry, "beta_times_log_sigmoid_log_odds"), "losses");
    expect_near(losses.mean(), at(entry, "loss_without_nll"), "loss");
    expect_near(-losses.mean() / beta, at(entry, "log_odds_ratio_mean"), "ratio");
    expect_near(odds.mean(), at(entry, "log_odds_mean"), "odds");
    expect_near(gradient(losses.mean(), chosen), at(entry, "d_loss_d_chosen"), "chosen");
    expect_near(gradient(losses.mean(), rejected), at(entry, "d_loss_d_rejected"), "rejected");
  }
}

void check_trl_reward(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor scores = leaf(doubles(at(record, "scores")));
    const json::Value& centering = at(entry, "center_rewards_coefficient");

    const at::Tensor loss =
        losses::pairwise_reward(
            half(scores, 0),
            half(scores, 1),
            at(entry, "with_margin").as_bool() ? doubles(at(record, "margin")) : at::Tensor(),
            centering.is_null() ? 0.0 : centering.as_double())
            .mean();

    expect_near(loss, at(entry, "loss"), "loss");
    expect_near(gradient(loss, scores), at(entry, "d_loss_d_scores"), "gradient");
  }
}

void check_deepspeed_reward(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor ids = golden::integers(at(entry, "input_ids"));
    const at::Tensor scores = leaf(doubles(at(entry, "token_rewards")));

    const losses::ComparedTokens tokens =
        losses::compared_tokens(half(ids, 0),
                                half(ids, 1),
                                *at(entry, "pad_token_id").as_integer(),
                                *at(entry, "num_padding_at_beginning").as_integer());
    const at::Tensor loss =
        losses::tokenwise_reward(half(scores, 0), half(scores, 1), tokens).mean();

    expect_near(at::stack({tokens.begin_P, tokens.end_P}, 1), at(entry, "spans"), "spans");
    const auto end_scores = [&](int which, const at::Tensor& end_P) {
      return half(scores, which).gather(1, (end_P - 1).unsqueeze(1)).squeeze(1);
    };
    expect_near(end_scores(0, tokens.chosen_end_P), at(entry, "chosen_end_scores"), "chosen");
    expect_near(end_scores(1, tokens.rejected_end_P), at(entry, "rejected_end_scores"), "rejected");
    expect_near(loss, at(entry, "loss"), "loss");
    expect_near(gradient(loss, scores), at(entry, "d_loss_d_token_rewards"), "gradient");
  }
}

TEST(GoldenPairs, LossesAndGradientsAreThoseOfTheRecordedTrainers) {
  golden::check_files({{"trl_dpo.json", check_trl_dpo},
                       {"dpo.json", check_deepspeed_dpo},
                       {"trl_kto.json", check_kto},
                       {"trl_cpo.json", check_cpo},
                       {"trl_orpo.json", check_orpo},
                       {"trl_reward.json", check_trl_reward},
                       {"reward_pairwise.json", check_deepspeed_reward}});
}

TEST(GoldenPairs, EveryFileOfTheFolderIsChecked) {
  for (const golden::fs::path& path : golden::cases("rlhf")) {
    const std::string name = path.filename().string();
    const auto& pairs = golden::files_of_pairs();
    const auto& policies = golden::files_of_policies();
    EXPECT_TRUE(std::count(pairs.begin(), pairs.end(), name) > 0 ||
                std::count(policies.begin(), policies.end(), name) > 0)
        << name << " is checked by no test";
  }
}

}  // namespace
}  // namespace tessera
